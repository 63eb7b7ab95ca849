"""The live footer: it is drawn below the output, and removing it leaves the output unchanged."""

import io
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from terminal import TerminalEmulator

from retinue.cli.ui.live_footer import FooterLine, LiveFooter, TerminalSize


class RecordingTerminal(io.StringIO):
    """A terminal that counts what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def footer_lines(*texts: str) -> list[FooterLine]:
    return [((text, ""),) for text in texts]


class FooterScreen:
    """A live footer on an emulated terminal."""

    def __init__(self, emulator: TerminalEmulator) -> None:
        self.emulator = emulator
        self.tty = RecordingTerminal()
        self.footer = LiveFooter(
            self.tty, current_size=lambda: TerminalSize(width=emulator.width, height=emulator.height)
        )

    def visible_lines(self) -> list[str]:
        """Return the lines on the screen after everything written so far. A terminal starts a new line at each line feed."""
        written = "".join(self.tty.writes)
        self.tty.writes.clear()
        self.emulator.feed(written.replace("\n", "\r\n"))
        return self.emulator.visible_lines()


@pytest.fixture
def screen(terminal_emulator: type[TerminalEmulator]) -> FooterScreen:
    return FooterScreen(terminal_emulator(width=20, height=8))


def test_output_continues_above_the_footer_where_it_stopped(screen: FooterScreen):
    screen.footer.write_above("One, ")
    screen.footer.draw(footer_lines("general#1"))
    screen.footer.write_above("two")
    screen.footer.write_above(".\nThree")
    screen.footer.draw(footer_lines("general#1", "scout#2"))
    assert screen.visible_lines() == ["One, two.", "Three", "general#1", "scout#2"]
    screen.footer.draw(())
    assert screen.visible_lines() == ["One, two.", "Three"]
    screen.footer.write_above(" more.")
    assert screen.visible_lines() == ["One, two.", "Three more."]


def test_each_redraw_is_one_write_and_an_unchanged_footer_writes_nothing(screen: FooterScreen):
    for count in (1, 6, 2):
        screen.footer.write_above("words ")
        screen.footer.write_above("and words\n")
        screen.tty.writes.clear()
        screen.footer.draw(footer_lines(*["x"] * count))
        screen.footer.write_above("again\n")
        screen.footer.draw(footer_lines(*["y"] * count))
        assert len(screen.tty.writes) == 2
        screen.footer.draw(footer_lines(*["y"] * count))
        assert len(screen.tty.writes) == 2


def test_a_footer_that_shrinks_leaves_nothing_behind(screen: FooterScreen):
    screen.footer.draw(footer_lines("a long line", "b", "c", "d"))
    screen.footer.draw(footer_lines("short"))
    assert screen.visible_lines() == ["short"]
    screen.footer.draw(())
    assert screen.visible_lines() == []


@pytest.mark.parametrize(
    "output", ["x" * 20, "x" * 19, "x" * 21, "x" * 40, "漢" * 10, "x漢" * 9, "a\tb", "é" * 20]
)
def test_a_line_that_fills_the_row_continues_as_without_a_footer(
    terminal_emulator: type[TerminalEmulator], output: str
):
    with_footer, without = (
        FooterScreen(terminal_emulator(width=20, height=8)),
        FooterScreen(terminal_emulator(width=20, height=8)),
    )
    with_footer.footer.write_above(output)
    with_footer.footer.draw(footer_lines("below"))
    with_footer.footer.write_above("and on")
    with_footer.footer.draw(footer_lines("below", "again"))
    with_footer.footer.draw(())
    without.footer.write_above(output + "and on")
    assert with_footer.visible_lines() == without.visible_lines()


@example(steps=["x" * 20, ["below"], "\na"])
@example(steps=["x" * 18 + "漢", [""], ["again"], "\n", "\na"])
@given(
    st.lists(
        # No tab at the start: after a full row, terminals differ in where it goes, and the footer has wrapped the row.
        st.text(st.sampled_from("ab 漢—\n\t"), max_size=30).map(lambda text: text.lstrip("\t"))
        | st.lists(st.text("xyz", max_size=19), max_size=5),
        max_size=12,
    )
)
def test_after_any_redraws_only_the_output_is_left(
    terminal_emulator: type[TerminalEmulator], steps: list[str | list[str]]
):
    """Whenever the footer is drawn between pieces of output, the terminal ends up as without a footer."""
    with_footer, without = (
        FooterScreen(terminal_emulator(width=20, height=400)),
        FooterScreen(terminal_emulator(width=20, height=400)),
    )
    for step in steps:
        if isinstance(step, str):
            with_footer.footer.write_above(step)
            without.footer.write_above(step)
        else:
            with_footer.footer.draw(footer_lines(*step))
    with_footer.footer.draw(())
    assert with_footer.visible_lines() == without.visible_lines()


def test_characters_of_uncertain_width_hide_the_footer_until_their_line_ends(screen: FooterScreen):
    screen.footer.write_above("done 👩\u200d💻")
    screen.footer.draw(footer_lines("general#1"))
    assert screen.tty.writes == ["done 👩\u200d💻"]
    screen.footer.write_above("\n")
    screen.footer.draw(footer_lines("general#1"))
    assert "general#1" in screen.tty.writes[-1]


def test_a_terminal_that_becomes_narrower_loses_no_output(screen: FooterScreen):
    screen.footer.write_above("One two")
    screen.footer.draw(footer_lines("a footer line here"))
    screen.emulator.width = 10
    screen.footer.write_above(" three")
    screen.footer.draw(())
    assert "\x1b[1A\x1b[1G\x1b[J three" in screen.tty.writes[-1]


def test_no_footer_is_drawn_while_the_user_answers_a_prompt(screen: FooterScreen):
    prompts: list[bool] = []
    screen.footer.is_paused = lambda: bool(prompts)
    screen.footer.draw(footer_lines("general#1"))
    prompts.append(True)
    screen.footer.write_above("? yes or no\n")
    assert screen.visible_lines() == ["? yes or no"]
    screen.footer.draw(footer_lines("general#1"))
    assert screen.visible_lines() == ["? yes or no"]
    prompts.clear()
    screen.footer.draw(footer_lines("general#1"))
    assert screen.visible_lines() == ["? yes or no", "general#1"]


def test_no_footer_is_drawn_on_a_terminal_with_too_few_lines(terminal_emulator: type[TerminalEmulator]):
    screen = FooterScreen(terminal_emulator(width=20, height=3))
    screen.footer.draw(footer_lines("a", "b", "c"))
    assert screen.visible_lines() == []


def test_output_that_scrolled_out_of_view_is_unchanged(screen: FooterScreen):
    def draw(lines: Sequence[str]) -> None:
        screen.footer.draw(footer_lines(*lines))

    for number in range(30):
        screen.footer.write_above(f"line {number}\n")
        draw([f"at {number}", "below"])
    assert screen.visible_lines() == [*(f"line {number}" for number in range(24, 30)), "at 29", "below"]
    assert ["".join(line) for line in screen.emulator.lines[:24]] == [
        f"line {number}" for number in range(24)
    ]
