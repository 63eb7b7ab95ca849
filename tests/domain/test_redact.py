"""Redaction: no form of a secret passes, however it is cut."""

import base64
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.redact import Redactor, Veil

SECRET = "sk-live+0123/456789abcdef"
FORMS = (SECRET, quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode().rstrip("="))


@given(before=st.text(), after=st.text(), form=st.sampled_from(FORMS))
def test_a_secret_is_taken_out_in_every_form_and_doing_it_again_changes_nothing(
    before: str, after: str, form: str
):
    """Shows: X16."""
    redact = Redactor([SECRET])
    once = redact(before + form + after)
    assert form not in once
    assert redact(once) == once


def test_a_secret_cut_at_any_place_never_shows_in_the_pieces():
    """Shows: X11."""
    text = f"the key is {SECRET}, keep it"
    for form in FORMS:
        spoken = text.replace(SECRET, form)
        for first in range(len(spoken)):
            for second in range(first, len(spoken), 7):
                veil = Veil(Redactor([SECRET]))
                pieces = [
                    veil.shown(each) for each in (spoken[:first], spoken[first:second], spoken[second:])
                ]
                told = "".join(pieces) + veil.rest()
                assert form not in told
                assert told == Redactor([SECRET])(spoken)


@given(pieces=st.lists(st.text(max_size=12)))
def test_words_without_a_secret_come_through_unchanged(pieces: list[str]):
    veil = Veil(Redactor([SECRET]))
    assert "".join(veil.shown(piece) for piece in pieces) + veil.rest() == "".join(pieces)


def test_a_value_too_short_to_be_a_secret_takes_no_words_with_it():
    assert Redactor(["the"])("the end") == "the end"
