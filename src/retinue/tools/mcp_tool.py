"""Make tools from pinned MCP tools, with the descriptions that the user approved."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from retinue.domain.ceiling import NETWORK_CAPABILITY
from retinue.domain.mcp import McpTool, PinnedTool, qualified_tool_name
from retinue.domain.tool import ApprovalRequirement, Effect, ToolSpec
from retinue.interfaces import Call, Tool
from retinue.tools.arguments import check_json_limits

CallMcpTool = Callable[[PinnedTool, Mapping[str, Any]], Awaitable[str]]
"""Call the tool on its server, if it is still the tool that was trusted."""

CATEGORY = "mcp"
CHANGED_REASON = "its server has changed its description since you trusted it: retinue mcp trust {server}"


def make_mcp_tool(
    server: str, pin: PinnedTool, call_mcp_tool: CallMcpTool, *, believe_hints: bool = False
) -> Tool:
    """Make a tool from a pinned MCP tool.

    Unless its hints are trusted, it counts as destructive: not repeatable, requiring approval, and using the
    network.
    """
    visible_tool = pin.tool.with_visible_text()
    hints: Mapping[str, bool] = pin.tool.hints if believe_hints else {}
    is_read_only = hints.get("readOnlyHint") is True

    async def call_server(arguments: Mapping[str, Any], _call: Call) -> str:
        return await call_mcp_tool(pin, arguments)

    return Tool(
        spec=ToolSpec(
            name=qualified_tool_name(server, visible_tool.name),
            description=visible_tool.description
            or f"{visible_tool.name}, a tool of the MCP server {server}.",
            schema=visible_tool.schema,
        ),
        parse_arguments=_make_argument_parser(pin.tool),
        function=call_server,
        effect=_effect_from_hints(
            is_read_only=is_read_only, is_idempotent=hints.get("idempotentHint") is True
        ),
        approval_requirement=ApprovalRequirement.NEVER
        if is_read_only
        else ApprovalRequirement.UNLESS_GRANTED,
        capabilities=() if hints.get("openWorldHint") is False else (NETWORK_CAPABILITY,),
        category=CATEGORY,
        plugin=server,
        unavailable_reason=CHANGED_REASON.format(server=server) if pin.changed_hash else "",
    )


def _effect_from_hints(*, is_read_only: bool, is_idempotent: bool) -> Effect:
    if is_read_only:
        return Effect.READ
    return Effect.IDEMPOTENT if is_idempotent else Effect.ONCE


def _make_argument_parser(mcp_tool: McpTool) -> Callable[[bytes], Mapping[str, Any]]:
    """Make a parser that checks for one object with the required arguments and no forbidden ones.

    The server checks the rest.
    """
    required: Any = mcp_tool.schema.get("required")
    required_names = [str(each) for each in cast("list[Any]", required)] if isinstance(required, list) else []
    properties: Any = mcp_tool.schema.get("properties")
    known = set(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else set[str]()
    forbids_others = (
        mcp_tool.schema.get("additionalProperties") is False and "patternProperties" not in mcp_tool.schema
    )

    def parse_arguments(raw: bytes) -> Mapping[str, Any]:
        raw = raw.strip() or b"{}"
        check_json_limits(raw)
        try:
            decoded: Any = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the arguments cannot be parsed: {error}") from error
        if not isinstance(decoded, dict):
            raise ValueError("the arguments must be a JSON object")  # noqa: TRY004  (callers expect ValueError)
        arguments = cast("dict[str, Any]", decoded)
        for each in required_names:
            if each not in arguments:
                raise ValueError(f"the argument `{each}` is missing")
        for each in arguments:
            if forbids_others and each not in known:
                raise ValueError(
                    f"unknown argument `{each}`; valid arguments: {', '.join(sorted(known)) or 'none'}"
                )
        return arguments

    return parse_arguments
