"""Values as the bytes of an answer."""

import json

import msgspec

_ENCODER = msgspec.json.Encoder()


def encoded(value: object) -> bytes:
    """JSON in UTF-8. Half a character, which a file's name or a broken text may hold, becomes U+FFFD."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
