"""Lines below the words: they come, change and go, and the words read as if they had never been there."""

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import TerminalEmulator

from retinue.cli.ui.live_footer import FooterLine, LiveFooter, TerminalSize


class Tty(io.StringIO):
    """A terminal that counts what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def lines_of(*texts: str) -> list[FooterLine]:
    return [((text, ""),) for text in texts]


class Stage:
    """A footer on a terminal of some size, and what a person sees there."""

    def __init__(self, glass: TerminalEmulator) -> None:
        self.glass = glass
        self.tty = Tty()
        self.footer = LiveFooter(
            self.tty, current_size=lambda: TerminalSize(width=glass.width, height=glass.height)
        )

    def seen(self) -> list[str]:
        """The terminal itself begins a line where a line ends."""
        taken = "".join(self.tty.writes)
        self.tty.writes.clear()
        self.glass.feed(taken.replace("\n", "\r\n"))
        return self.glass.visible_lines()


@pytest.fixture
def stage(terminal_emulator: type[TerminalEmulator]) -> Stage:
    return Stage(terminal_emulator(width=20, height=8))


def test_words_go_on_above_the_footer_where_they_stopped(stage: Stage):
    stage.footer.write_above("One, ")
    stage.footer.draw(lines_of("general#1"))
    stage.footer.write_above("two")
    stage.footer.write_above(".\nThree")
    stage.footer.draw(lines_of("general#1", "scout#2"))
    assert stage.seen() == ["One, two.", "Three", "general#1", "scout#2"]
    stage.footer.draw(())
    assert stage.seen() == ["One, two.", "Three"]
    stage.footer.write_above(" more.")
    assert stage.seen() == ["One, two.", "Three more."]


def test_a_frame_is_one_write_and_nothing_is_written_when_nothing_changed(stage: Stage):
    for count in (1, 6, 2):
        stage.footer.write_above("words ")
        stage.footer.write_above("and words\n")
        stage.tty.writes.clear()
        stage.footer.draw(lines_of(*["x"] * count))
        stage.footer.write_above("again\n")
        stage.footer.draw(lines_of(*["y"] * count))
        assert len(stage.tty.writes) == 2
        stage.footer.draw(lines_of(*["y"] * count))
        assert len(stage.tty.writes) == 2


def test_a_footer_that_shrinks_leaves_nothing_behind(stage: Stage):
    stage.footer.draw(lines_of("a long line", "b", "c", "d"))
    stage.footer.draw(lines_of("short"))
    assert stage.seen() == ["short"]
    stage.footer.draw(())
    assert stage.seen() == []


@pytest.mark.parametrize(
    "words", ["x" * 20, "x" * 19, "x" * 21, "x" * 40, "漢" * 10, "x漢" * 9, "a\tb", "é" * 20]
)
def test_a_line_that_fills_the_row_goes_on_as_it_would_have(
    terminal_emulator: type[TerminalEmulator], words: str
):
    with_footer, without = (
        Stage(terminal_emulator(width=20, height=8)),
        Stage(terminal_emulator(width=20, height=8)),
    )
    with_footer.footer.write_above(words)
    with_footer.footer.draw(lines_of("below"))
    with_footer.footer.write_above("and on")
    with_footer.footer.draw(lines_of("below", "again"))
    with_footer.footer.draw(())
    without.footer.write_above(words + "and on")
    assert with_footer.seen() == without.seen()


@given(
    st.lists(
        st.text(st.sampled_from("ab 漢—\n\t"), max_size=30)
        | st.lists(st.text("xyz", max_size=19), max_size=5),
        max_size=12,
    )
)
def test_whatever_was_drawn_meanwhile_the_words_are_all_that_is_left(
    terminal_emulator: type[TerminalEmulator], steps: list[str | list[str]]
):
    """The footer comes and goes between any pieces of any words, and they read as if it had never been there."""
    with_footer, without = (
        Stage(terminal_emulator(width=20, height=400)),
        Stage(terminal_emulator(width=20, height=400)),
    )
    for step in steps:
        if isinstance(step, str):
            with_footer.footer.write_above(step)
            without.footer.write_above(step)
        else:
            with_footer.footer.draw(lines_of(*step))
    with_footer.footer.draw(())
    assert with_footer.seen() == without.seen()


def test_pictures_of_uncertain_width_hide_the_footer_until_their_line_ends(stage: Stage):
    stage.footer.write_above("done 👩\u200d💻")
    stage.footer.draw(lines_of("general#1"))
    assert stage.tty.writes == ["done 👩\u200d💻"]
    stage.footer.write_above("\n")
    stage.footer.draw(lines_of("general#1"))
    assert "general#1" in stage.tty.writes[-1]


def test_a_terminal_that_became_narrower_loses_no_words(stage: Stage):
    stage.footer.write_above("One two")
    stage.footer.draw(lines_of("a footer line here"))
    stage.glass.width = 10
    stage.footer.write_above(" three")
    stage.footer.draw(())
    assert "\x1b[1A\x1b[1G\x1b[J three" in stage.tty.writes[-1]


def test_while_a_person_is_asked_nothing_is_drawn_where_they_type(stage: Stage):
    asking: list[bool] = []
    stage.footer.is_paused = lambda: bool(asking)
    stage.footer.draw(lines_of("general#1"))
    asking.append(True)
    stage.footer.write_above("? yes or no\n")
    assert stage.seen() == ["? yes or no"]
    stage.footer.draw(lines_of("general#1"))
    assert stage.seen() == ["? yes or no"]
    asking.clear()
    stage.footer.draw(lines_of("general#1"))
    assert stage.seen() == ["? yes or no", "general#1"]


def test_a_terminal_too_low_for_the_footer_has_none(terminal_emulator: type[TerminalEmulator]):
    stage = Stage(terminal_emulator(width=20, height=3))
    stage.footer.draw(lines_of("a", "b", "c"))
    assert stage.seen() == []


def test_what_scrolled_away_stays_as_it_was(stage: Stage):
    def drawn(lines: Sequence[str]) -> None:
        stage.footer.draw(lines_of(*lines))

    for number in range(30):
        stage.footer.write_above(f"line {number}\n")
        drawn([f"at {number}", "below"])
    assert stage.seen() == [*(f"line {number}" for number in range(24, 30)), "at 29", "below"]
    assert ["".join(line) for line in stage.glass.lines[:24]] == [f"line {number}" for number in range(24)]
