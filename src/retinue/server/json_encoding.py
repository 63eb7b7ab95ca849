"""JSON encoding of responses."""

import json

import msgspec

_ENCODER = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    """Encode a value as JSON in UTF-8.

    Lone surrogates, which file names and damaged texts may contain, become U+FFFD.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
