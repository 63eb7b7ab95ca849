"""The captured output of a command: head, tail and the file with the whole output."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from retinue.sandbox.output_capture import HEAD_BYTES, MAX_FILE_BYTES, TAIL_BYTES, OutputCapture

PIECE_SIZES = st.lists(st.integers(1, 40_000), min_size=1, max_size=12)


def capture_in_pieces(text: bytes, sizes: list[int]) -> OutputCapture:
    output = OutputCapture()
    offset = 0
    for size in sizes:
        output.write(text[offset : offset + size])
        offset += size
    output.write(text[offset:])
    return output


@given(
    sizes=PIECE_SIZES,
    word=st.sampled_from(["x", "é", "€", "🜚", "ab€"]),
    lines=st.booleans(),
    times=st.integers(0, 9_000),
)
def test_a_truncated_output_has_whole_characters_and_names_the_number_of_omitted_bytes(
    sizes: list[int], word: str, lines: bool, times: int
):
    """Shows: K08."""
    whole = (word * 9 + ("\n" if lines else "")) * times
    output = capture_in_pieces(whole.encode(), sizes)
    text = output.text()
    assert "\ufffd" not in text
    if len(whole.encode()) <= HEAD_BYTES + TAIL_BYTES:
        assert (text, output.is_truncated) == (whole, False)
        return
    head, note, tail = text.partition("\n[… ")
    omitted, _, tail = tail.partition(" bytes left out …]\n")
    assert note
    assert whole.startswith(head)
    assert whole.endswith(tail)
    missing = len(whole.encode()) - len(head.encode()) - len(tail.encode())
    # the line end before the note may replace the last one of the head
    assert missing - int(omitted.replace(",", "")) in (0, 1)
    assert len(text.encode()) <= HEAD_BYTES + TAIL_BYTES + 100


def test_the_output_file_is_created_only_when_the_output_is_truncated(tmp_path: Path):
    path = tmp_path / "whole"
    output = OutputCapture(lambda: (os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "/tmp/whole"))
    output.write(b"x" * HEAD_BYTES)
    output.write(b"y" * TAIL_BYTES)
    assert (output.file_name, path.exists()) == ("", False)
    output.write(b"z")
    output.close()
    assert (output.file_name, output.is_file_complete) == ("/tmp/whole", True)
    assert path.read_bytes() == b"x" * HEAD_BYTES + b"y" * TAIL_BYTES + b"z"


def test_head_and_tail_are_kept_when_the_output_file_cannot_be_created_or_written(tmp_path: Path):
    """Shows: K07."""

    def fail_to_open() -> tuple[int, str]:
        raise OSError(28, "no space")

    for open_file in (fail_to_open, lambda: (os.open("/dev/full", os.O_WRONLY), "/tmp/whole"), lambda: None):
        output = OutputCapture(open_file)
        for _ in range(10):
            output.write(b"x" * 30_000)
        output.close()
        assert output.total_bytes == 300_000
        assert not output.is_file_complete
        assert output.text().endswith("x" * 20_000)


def test_the_size_of_the_output_file_is_limited(tmp_path: Path):
    path = tmp_path / "whole"
    output = OutputCapture(lambda: (os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "/tmp/whole"))
    for _ in range(70):
        output.write(b"x" * 1_000_000)
    output.close()
    assert (path.stat().st_size, output.is_file_complete, output.total_bytes) == (
        MAX_FILE_BYTES,
        False,
        70_000_000,
    )
