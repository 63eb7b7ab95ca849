"""The system prompt: the base first, then its sections, the same for the same input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import Agent
from retinue.domain.system_prompt import (
    DEFAULT_BASE_PROMPT,
    MAX_INTRODUCTION_CHARS,
    MAX_LISTED_AGENTS,
    SUBAGENT_PREAMBLE,
    agents_section,
    base_prompt,
    first_message,
    first_sentence,
    system_prompt,
    tools_section,
)

READER = Agent(name="reading", display_name="Reading List", description="Keeps what you want to read.")
WRITER = Agent(name="writer", prompt="Write well.\n", description="Writes.")
TOOLS = [("read", "Reads a file. At most 2,000 lines."), ("system_time", "The time."), ("ls", "Lists")]


def test_the_prompt_of_a_definition_is_the_base():
    """Shows: C068."""
    assert base_prompt(WRITER) == "Write well.\n"
    assert system_prompt(WRITER, []).startswith("Write well.")


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_without_a_prompt_the_base_is_built_from_name_and_description(prompt: str):
    """Shows: C069."""
    agent = Agent(name="r", display_name="Reading List", description="Keeps lists.", prompt=prompt)
    assert base_prompt(agent) == "You are Reading List. Keeps lists."
    assert base_prompt(Agent(name="r")) == "You are r."


def test_without_an_agent_the_base_is_the_default():
    """Shows: C070."""
    assert base_prompt(None) == DEFAULT_BASE_PROMPT
    assert system_prompt(None, []) == DEFAULT_BASE_PROMPT


def test_sections_follow_the_base_and_omit_the_tools_of_the_runtime():
    """Shows: C071, C072."""
    assert system_prompt(READER, TOOLS) == (
        "You are Reading List. Keeps what you want to read.\n\nAvailable tools:\n- read: Reads a file.\n- ls: Lists"
    )


def test_without_tools_there_is_no_tool_section():
    assert system_prompt(WRITER, [("system_time", "The time.")]) == "Write well."


def test_the_prompt_of_a_sub_agent_starts_with_the_preamble_and_a_top_level_prompt_does_not():
    child_prompt = system_prompt(WRITER, TOOLS, depth=1)
    assert child_prompt == f"{SUBAGENT_PREAMBLE}\n\n{system_prompt(WRITER, TOOLS)}"
    assert SUBAGENT_PREAMBLE not in system_prompt(WRITER, TOOLS, depth=0)


def test_a_specialised_prompt_consists_of_the_base_and_the_task():
    text = system_prompt(WRITER, TOOLS, task="Find the module.")
    assert text.startswith("Write well.\n\nYour task:\nFind the module.\n\nAvailable tools:\n")


def test_the_last_section_lists_other_agents_and_the_tool_to_ask_them():
    """Shows: C071, C081."""
    others = [Agent(name="todo", display_name="Todo List Manager", description="manages tasks"), WRITER]
    text = system_prompt(
        READER, TOOLS, other_agents=others, delegation_tools=["PersistentAgent", "agents_message"]
    )
    assert text == system_prompt(READER, TOOLS) + (
        "\n\nAvailable agents you can delegate to:\n- todo: Todo List Manager - manages tasks\n- writer: Writes.\n\n"
        "Use agents_message to ask another agent to perform a task."
    )


def test_without_other_agents_or_delegation_tools_there_is_no_agent_section():
    """Shows: C081."""
    assert system_prompt(READER, TOOLS, other_agents=[WRITER]) == system_prompt(READER, TOOLS)
    assert system_prompt(READER, TOOLS, delegation_tools=["agents_message"]) == system_prompt(READER, TOOLS)


@pytest.mark.parametrize(("more", "last"), [(True, "- and 2 more: agents_list"), (False, "- and 2 more")])
def test_a_long_agent_list_is_cut_and_the_rest_is_counted(more: bool, last: str):
    others = [Agent(name=f"a{each:03}") for each in range(MAX_LISTED_AGENTS + 2)]
    lines = agents_section(others, ["a", "b"], can_list_all=more).splitlines()
    assert lines[1 : MAX_LISTED_AGENTS + 2] == [
        *(f"- a{each:03}: a{each:03}" for each in range(MAX_LISTED_AGENTS)),
        last,
    ]
    assert lines[-1] == "Use a or b to ask another agent to perform a task."
    assert "more" not in agents_section(others[:MAX_LISTED_AGENTS], ["a"], can_list_all=more)


@given(text=st.text(max_size=MAX_INTRODUCTION_CHARS * 2))
def test_an_agent_description_stays_on_one_line_and_has_a_maximum_length(text: str):
    other = Agent(name="a", display_name=text, description=text)
    lines = agents_section([other, other], ["x"]).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= MAX_INTRODUCTION_CHARS + len("- a: ")


def test_the_prompt_changes_when_the_tools_change():
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
    assert first_sentence(text) == expected


@given(text=st.text(max_size=60))
def test_a_tool_description_stays_on_one_line(text: str):
    assert len(tools_section([("a", text), ("b", text)]).splitlines()) == 3


def test_the_first_message_states_the_task():
    """Shows: B015."""
    assert first_message("count the files") == "Execute this task: count the files"
