"""Front matter: the YAML between two lines of three dashes at the top of a Markdown file, found without a YAML reader."""

import hashlib
import re

from retinue.errors import BadDefinition

_OPENING = re.compile("\ufeff?---[ \t]*\r?\n")
_CLOSING = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)


def split(text: str, where: str = "the definition") -> tuple[str, str]:
    """The front matter's text and the body. A file without it, or with half of it, is an error and never all body:
    what a torn file no longer says must not become a wider right."""
    opening = _OPENING.match(text)
    if opening is None:
        raise BadDefinition(
            f"{where}:1", "has no front matter; start the file with a line ---, the fields, and a line ---"
        )
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise BadDefinition(f"{where}:1", "has front matter that does not end; close it with a line ---")
    body = text[closing.end() :]
    return text[opening.end() : closing.start()], body.removeprefix("\r").removeprefix("\n")


def digest(text: str) -> str:
    """The hash by which a preset's text is known."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
