"""Redaction: no form of a secret passes, however the text is split."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_secret import PlantedSecret

from retinue.domain.redaction import Redactor, StreamRedactor

SECRET = "sk-live+0123/456789abcdef"
FORMS = (SECRET, quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode().rstrip("="))


@given(before=st.text(), after=st.text(), form=st.sampled_from(FORMS))
def test_every_form_of_a_secret_is_redacted_and_redacting_twice_changes_nothing(
    before: str, after: str, form: str
):
    """Shows: X16."""
    redact = Redactor([SECRET])
    redacted = redact(before + form + after)
    assert form not in redacted
    assert redact(redacted) == redacted


def test_a_secret_split_anywhere_never_appears_in_the_streamed_pieces():
    """Shows: X11."""
    text = f"the key is {SECRET}, keep it"
    for form in FORMS:
        variant = text.replace(SECRET, form)
        for first in range(len(variant)):
            for second in range(first, len(variant), 7):
                stream = StreamRedactor(Redactor([SECRET]))
                pieces = [
                    stream.feed(each) for each in (variant[:first], variant[first:second], variant[second:])
                ]
                shown = "".join(pieces) + stream.flush()
                assert form not in shown
                assert shown == Redactor([SECRET])(variant)


@given(pieces=st.lists(st.text(max_size=12)))
def test_text_without_a_secret_is_streamed_unchanged(pieces: list[str]):
    stream = StreamRedactor(Redactor([SECRET]))
    assert "".join(stream.feed(piece) for piece in pieces) + stream.flush() == "".join(pieces)


def test_a_value_too_short_to_be_a_secret_is_not_redacted():
    assert Redactor(["the"])("the end") == "the end"


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_a_secret_inside_a_longer_base64_value_is_redacted_at_any_offset(shift: int):
    """Shows: X11."""
    encoded = base64.b64encode(b"u" * shift + SECRET.encode() + b":and more").decode()
    assert "[secret of" in Redactor([SECRET])(f"Authorization: {encoded}")


def test_every_known_key_format_is_redacted_and_the_text_around_it_stays(
    planted_secrets: dict[str, PlantedSecret],
):
    """Shows: X09, X16."""
    redact = Redactor([])
    for name, each in planted_secrets.items():
        redacted = redact(f"before {each.text} after")
        assert (
            redacted == f"before {each.before}[secret of {len(each.secret)} characters]{each.after} after"
        ), name
        assert redact(redacted) == redacted, name


def test_a_key_is_redacted_inside_json_quotes_and_punctuation(planted_secrets: dict[str, PlantedSecret]):
    """Tool call arguments are JSON, where a line break is the two characters `\\n`.

    Shows: X09.
    """
    redact = Redactor([])
    for name, each in planted_secrets.items():
        for around in ("{}", "({})", '"{}"', "see:{},", "\n{}\n", "é{}é", "key={};"):
            encoded = json.dumps({"text": around.format(each.text)})
            redacted = redact(encoded)
            assert json.dumps(each.secret)[1:-1] not in redacted, (name, around)
            assert "[secret of" in json.loads(redacted)["text"], (name, around)


def test_a_key_split_anywhere_never_appears_in_the_streamed_pieces(planted_secrets: dict[str, PlantedSecret]):
    """Shows: X11."""
    redact = Redactor([SECRET])
    for name, each in planted_secrets.items():
        text = f"key: {each.text} and {SECRET}."
        whole = redact(text)
        for cut in range(len(text)):
            stream = StreamRedactor(redact)
            assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.flush() == whole, (name, cut)
        stream = StreamRedactor(redact)
        shown = [stream.feed(char) for char in text]
        assert "".join(shown) + stream.flush() == whole, name


@given(
    pieces=st.lists(
        st.one_of(
            st.text(max_size=6),
            st.sampled_from(
                ["sk-", "ghp_", "AKIA", "://", ":", "@", "Bearer ", "KEY=", "a1" * 12, "\\n", "eyJ", "."]
            ),
            st.sampled_from(
                ["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", SECRET, SECRET[:9], "-", " "]
            ),
        ),
        max_size=14,
    )
)
def test_streamed_redaction_equals_redaction_of_the_whole_text(pieces: list[str]):
    """Shows: X11."""
    redact = Redactor([SECRET])
    stream = StreamRedactor(redact)
    assert "".join(map(stream.feed, pieces)) + stream.flush() == redact("".join(pieces))


@given(
    st.lists(
        st.sampled_from(
            ["sk-", "ghp_", "a1" * 18, "://", "x:", "longpass1", "@", " ", "TOKEN=", "Bearer ", "."]
        )
    )
)
def test_redacting_key_formats_twice_changes_nothing(pieces: list[str]):
    """Shows: X16."""
    redacted = Redactor([])("".join(pieces))
    assert Redactor([])(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "keys begin with sk-, ghp_, AKIA or eyJ; see https://example.org:8080/a@b and mailto:bob@example.org",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "id 01890a5d-ac96-774b-bcce-b302099a8057, 550e8400-e29b-41d4-a716-446655440000",
        '"integrity": "sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs17LhbZVGedAJv8XZ1tvj5FvSg=="',
        "--hash=sha256:b1f6b5d0a5d6b1d0f9b0d0f6e9c8f8b7b3a2c1d0e9f8a7b6c5d4e3f2a1b0c9d8",
        '<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4//8/w38">',
        'KEY_SHAPE = re.compile(r"\\b(?:sk|pk|key)-[A-Za-z0-9_*.-]{6,}|ghp_[A-Za-z0-9]{36}")',
        'password = os.environ["PASSWORD"]; TOKEN=$(cat token); API_KEY=${OTHER_API_KEY}; KEY=base64.b64decode(value1)',
        "postgres://user:${PASSWORD}@db/x postgres://user:<password>@db https://user:****@host",
        "Bearer authentication is described below; Basic understanding of it helps; the bearer of this-long-sentence",
        ".sk-fading-circle .sk-circle-before-animation-delay { } npm_config_registry npm_package_version_number",
        "import AKIAIOSFODNN from somewhere; task-1234567890abcdefghijklmnop risk-assessment-1234567890abcdef",
        "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYD\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
        "//# sourceMappingURL=data:application/json;base64,eyJ2ZXJzaW9uIjozLCJzb3VyY2VzIjpbXX0=",
    ],
)
def test_text_that_only_resembles_a_key_is_not_redacted(text: str):
    """Shows: X16."""
    assert Redactor([])(text) == text
    stream = StreamRedactor(Redactor([]))
    assert "".join(map(stream.feed, text)) + stream.flush() == text


def test_an_endless_key_is_not_buffered_forever():
    stream = StreamRedactor(Redactor([]))
    shown = sum(len(stream.feed("a" * 1000)) for _ in range(40)) if stream.feed("eyJ") == "" else 0
    assert shown > 10_000
