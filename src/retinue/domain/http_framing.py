"""Which transfer encodings of HTTP/1.1 messages are accepted."""

from collections.abc import Sequence


def is_supported_transfer_encoding(values: Sequence[str]) -> bool:
    """Return whether a message with these `Transfer-Encoding` headers is sent whole or in plain chunks.

    A lenient parser takes `gzip, chunked` for plain chunks and `xchunked` for a body that ends with the connection.
    Programs that read the same bytes differently can be made to see different messages.
    """
    return not values or (len(values) == 1 and values[0].strip(" ").lower() == "chunked")
