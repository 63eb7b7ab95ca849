"""Values that hold secrets, and leave them out of their representation."""

from typing import Any, ClassVar

from msgspec import Struct


class SecretFieldsStruct(Struct, frozen=True, kw_only=True):
    """Base of values with secrets: `repr` shows every field but `secret_fields`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            (name, getattr(self, name)) for name in self.__struct_fields__ if name not in self.secret_fields
        ]
