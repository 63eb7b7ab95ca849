"""The system prompt: base first, sections after it, the same every time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import Agent
from retinue.domain.prompt import (
    DEFAULT_BASE,
    PREAMBLE,
    base,
    first_message,
    short,
    system_prompt,
    tools_section,
)

READER = Agent(name="reading", display_name="Reading List", description="Keeps what you want to read.")
WRITER = Agent(name="writer", prompt="Write well.\n", description="Writes.")
TOOLS = [("read", "Reads a file. At most 2,000 lines."), ("system_time", "The time."), ("ls", "Lists")]


def test_an_agents_own_words_are_the_base():
    """Shows: C068."""
    assert base(WRITER) == "Write well.\n"
    assert system_prompt(WRITER, []).startswith("Write well.")


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_without_words_of_its_own_the_base_is_made_of_name_and_description(prompt: str):
    """Shows: C069."""
    agent = Agent(name="r", display_name="Reading List", description="Keeps lists.", prompt=prompt)
    assert base(agent) == "You are Reading List. Keeps lists."
    assert base(Agent(name="r")) == "You are r."


def test_without_an_agent_the_base_is_the_default():
    """Shows: C070."""
    assert base(None) == DEFAULT_BASE
    assert system_prompt(None, []) == DEFAULT_BASE


def test_sections_follow_the_base_and_the_runtimes_own_tools_are_not_listed():
    """Shows: C071, C072."""
    assert system_prompt(READER, TOOLS) == (
        "You are Reading List. Keeps what you want to read.\n\nAvailable tools:\n- read: Reads a file.\n- ls: Lists"
    )


def test_no_tools_is_no_section():
    assert system_prompt(WRITER, [("system_time", "The time.")]) == "Write well."


def test_a_sub_agent_reads_the_preamble_first_and_a_top_level_one_does_not():
    below = system_prompt(WRITER, TOOLS, depth=1)
    assert below == f"{PREAMBLE}\n\n{system_prompt(WRITER, TOOLS)}"
    assert PREAMBLE not in system_prompt(WRITER, TOOLS, depth=0)


def test_base_and_task_together_make_a_specialised_prompt():
    text = system_prompt(WRITER, TOOLS, task="Find the module.")
    assert text.startswith("Write well.\n\nYour task:\nFind the module.\n\nAvailable tools:\n")


def test_a_prompt_changes_when_the_tools_do():
    """Shows: C067."""
    assert system_prompt(WRITER, TOOLS) != system_prompt(WRITER, TOOLS[:1])
    assert system_prompt(WRITER, TOOLS) == system_prompt(WRITER, list(TOOLS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("One.", "One."),
        ("One. Two.", "One."),
        ("One\n  line. Two.", "One line."),
        ("Version 1.5 reads files", "Version 1.5 reads files"),
    ],
)
def test_a_description_is_shortened_to_its_first_sentence(text: str, expected: str):
    assert short(text) == expected


@given(text=st.text(max_size=60))
def test_no_description_can_open_a_line_of_its_own(text: str):
    assert len(tools_section([("a", text), ("b", text)]).splitlines()) == 3


def test_the_first_message_of_a_task():
    """Shows: B015."""
    assert first_message("count the files") == "Execute this task: count the files"
