"""JSON results of the delegation tools."""

import msgspec


def json_result(**fields: object) -> str:
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None}).decode()
