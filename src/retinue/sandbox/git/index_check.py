"""Check that git's index lists only files that git itself would add.

Git checks the paths of a commit, but trusts those of an index: `git checkout -- .` writes an entry
`.git/hooks/post-checkout`, or one with an absolute path, to exactly that path.
"""

import re
import struct

_SIGNATURE = b"DIRC"
_HEADER = struct.Struct(">4sII")
_ENTRY_MODE_OFFSET = 24
_STAT_BYTES = 40
_FLAG_BYTES = 2
_NAME_LENGTH_MASK, _EXTENDED_FLAG = 0x0FFF, 0x4000
_UNCOMPRESSED_VERSIONS, _COMPRESSED_VERSION = (2, 3), 4
_FOLDER_MODE = 0o040000
_UNSAFE_NAME = re.compile(rb"(?i)(?:\A|[/\\])(?:\.git|git~1)(?:[/\\]|\Z)|(?:\A|/)(?:\.\.?|)(?:/|\Z)|\0")
_EXTENSION = struct.Struct(">4sI")
_SPLIT_INDEX, _ENTRY_OFFSETS, _END_OF_ENTRIES = b"link", b"IEOT", b"EOIE"
_OFFSET_BLOCK = struct.Struct(">II")
_HASH_BYTES = {False: 20, True: 32}


class _InvalidIndexError(Exception):
    """The index is not one that git writes."""


def unsafe_index_reason(data: bytes, *, sha256: bool) -> str:
    """Return why an index must not be used; empty for a safe one."""
    hash_bytes = _HASH_BYTES[sha256]
    try:
        names, offsets, end = _parse_entries(data, hash_bytes)
        is_split = _check_extensions(data, end, len(data) - hash_bytes, offsets)
    except (struct.error, ValueError, IndexError):
        return "it is damaged"
    except _InvalidIndexError as error:
        return str(error)
    unsafe = next((name for name in names if _UNSAFE_NAME.search(name) and (name or not is_split)), None)
    return "" if unsafe is None else f"it lists {unsafe.decode(errors='replace')!r}"


def _parse_entries(data: bytes, hash_bytes: int) -> tuple[list[bytes], list[int], int]:
    """Return the names of all entries, their offsets, and where the last one ends."""
    signature, version, count = _HEADER.unpack_from(data)
    if signature != _SIGNATURE or version not in (*_UNCOMPRESSED_VERSIONS, _COMPRESSED_VERSION):
        raise _InvalidIndexError("its format is unknown")
    names: list[bytes] = []
    offsets: list[int] = []
    offset, previous = _HEADER.size, b""
    flags_offset = _STAT_BYTES + hash_bytes
    for _ in range(count):
        offsets.append(offset)
        flags = int.from_bytes(data[offset + flags_offset : offset + flags_offset + _FLAG_BYTES], "big")
        start = offset + flags_offset + (2 * _FLAG_BYTES if flags & _EXTENDED_FLAG else _FLAG_BYTES)
        kept = 0
        if version == _COMPRESSED_VERSION:
            stripped, start = _read_varint(data, start)
            kept = len(previous) - stripped
            if kept < 0:
                raise _InvalidIndexError("it is damaged")
        end = data.index(b"\0", start)
        name = previous[:kept] + data[start:end]
        length = flags & _NAME_LENGTH_MASK
        if length != min(len(name), _NAME_LENGTH_MASK):
            raise _InvalidIndexError("it is damaged")
        is_folder = int.from_bytes(data[offset + _ENTRY_MODE_OFFSET : offset + _ENTRY_MODE_OFFSET + 4], "big")
        names.append(name.removesuffix(b"/") if is_folder == _FOLDER_MODE else name)
        previous = name
        if version == _COMPRESSED_VERSION:
            offset = end + 1
        else:
            offset += (start - offset + len(name) + 8) & ~7
    return names, offsets, offset


def _check_extensions(data: bytes, offset: int, end: int, entry_offsets: list[int]) -> bool:
    """Refuse extensions with which git would read other entries than those that were checked.

    Returns whether the index is split. The names of entries in the shared part are not in this file; the shared part is a file
    that no command can write.
    """
    entries_end, is_split = offset, False
    while offset < end:
        signature, size = _EXTENSION.unpack_from(data, offset)
        offset += _EXTENSION.size
        content = data[offset : offset + size]
        offset += size
        is_split = is_split or signature == _SPLIT_INDEX
        if signature == _END_OF_ENTRIES and int.from_bytes(content[:4], "big") != entries_end:
            raise _InvalidIndexError("it is damaged")
        if signature == _ENTRY_OFFSETS:
            _check_entry_blocks(content, entry_offsets)
    if offset != end:
        raise _InvalidIndexError("it is damaged")
    return is_split


def _check_entry_blocks(content: bytes, entry_offsets: list[int]) -> None:
    first = 0
    for block_offset, count in _OFFSET_BLOCK.iter_unpack(content[4:]):
        if first >= len(entry_offsets) or block_offset != entry_offsets[first]:
            raise _InvalidIndexError("it is damaged")
        first += count
    if first != len(entry_offsets):
        raise _InvalidIndexError("it is damaged")


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read git's variable-length number; return it and the offset behind it."""
    byte = data[offset]
    value = byte & 0x7F
    while byte & 0x80:
        offset += 1
        byte = data[offset]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, offset + 1
