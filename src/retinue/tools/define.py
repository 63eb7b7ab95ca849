"""Turn a Python function into a tool: its signature is the schema, its docstring the description."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, cast, get_args, get_origin, overload

import msgspec

from retinue.domain.approval import ToolAccess
from retinue.domain.system_prompt import SYSTEM_PREFIX
from retinue.domain.tool import ApprovalRequirement, Effect, ToolSpec
from retinue.errors import UsageError
from retinue.interfaces import Call, CallCheck, Tool, ToolFunction
from retinue.tools.abandonable_thread import run_in_own_thread
from retinue.tools.arguments import make_argument_parser
from retinue.tools.schema import tool_schema

RESOURCE_ACCESS_KINDS: tuple[ToolAccess, ...] = ("read", "write", "run", "scope")
"""Kinds of access to a path or a command, which scope rules check."""
TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

Function = Callable[..., Any]
Field = tuple[str, Any] | tuple[str, Any, Any]
Parse = Callable[[bytes], Mapping[str, Any]]

_ACCEPTED_PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str = Effect.ONCE,
    capabilities: Iterable[str] = (),
    category: str = "",
    plugin: str = "",
    is_delegation: bool = False,
    only_reads: bool = False,
    asks: ApprovalRequirement | str | None = None,
    access: tuple[ToolAccess, str] | None = None,
    agent_argument: str = "",
    recipient_argument: str = "",
    inspects_runs: bool = False,
    can_verify_completion: bool = False,
    delegation_refused_text: str = "",
    format_argument_error: Callable[[str], str] | None = None,
    check_call: CallCheck | None = None,
) -> Callable[[Function], Tool]: ...
def tool(  # noqa: PLR0913  (one keyword per property of a tool)
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str = Effect.ONCE,
    capabilities: Iterable[str] = (),
    category: str = "",
    plugin: str = "",
    is_delegation: bool = False,
    only_reads: bool = False,
    asks: ApprovalRequirement | str | None = None,
    access: tuple[ToolAccess, str] | None = None,
    agent_argument: str = "",
    recipient_argument: str = "",
    inspects_runs: bool = False,
    can_verify_completion: bool = False,
    delegation_refused_text: str = "",
    format_argument_error: Callable[[str], str] | None = None,
    check_call: CallCheck | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool from a function, async or not.

    Use as `@tool` or `@tool(effect="read")`. A parameter annotated `Call` receives the call and is not shown
    to the model. `Annotated[str, "text"]` describes an argument.

    Args:
        function: The function.
        name: The tool's name; the function's name by default.
        description: Description for the model; the docstring by default, or else the words of the name.
        effect: read, idempotent or once: whether a call may be repeated.
        capabilities: Capabilities that an agent needs for it.
        category: Heading under which lists show it.
        plugin: Plugin that provides it; an agent may get the skill of that name instead of the tool.
        is_delegation: The tool starts other agents.
        only_reads: The tool changes nothing, although a call must not be repeated.
        asks: Whether a call requires a person's approval. By default a tool that only reads does not, and
        any other tool does unless it was granted.
        access: Kind of access and name of the argument that holds a path or a command, so that the
        scope's rules are checked before the call.
        agent_argument: Name of the argument that takes an agent's name.
        recipient_argument: Name of the argument that names who gets a message: messages of one reply to one
        recipient are sent in the order of the calls.
        inspects_runs: The tool shows other agents and their runs, and starts none.
        can_verify_completion: After a crash, the tool can tell from its recorded intent whether a call was executed.
        delegation_refused_text: Error message for a sub-agent that may not delegate.
        format_argument_error: Formats the message for invalid arguments.
        check_call: Refuses a call that cannot succeed, before a person is asked to approve it.

    Returns:
        The tool, or a decorator that makes it.

    Raises:
        UsageError: The name, the description, the effect, the access or the signature cannot be used.
    """

    def make_tool(function: Function) -> Tool:
        tool_name = _check_name(name or getattr(function, "__name__", ""))
        fields, call_name = _parse_signature(tool_name, function)
        parse, schema = _argument_parser_and_schema(tool_name, fields)
        tool_access, resource_of = _parse_access(tool_name, access, fields)
        return Tool(
            spec=ToolSpec(
                name=tool_name,
                description=_describe(tool_name, description or inspect.getdoc(function)),
                schema=schema,
            ),
            parse_arguments=parse,
            function=_make_body(function, call_name),
            effect=_parse_effect(tool_name, effect),
            capabilities=tuple(capabilities),
            category=category,
            plugin=plugin,
            is_delegation=is_delegation,
            only_reads=only_reads,
            approval_requirement=_parse_ask_policy(
                tool_name, asks, Effect(effect), is_delegation=is_delegation
            ),
            agent_argument=agent_argument,
            recipient_argument=recipient_argument,
            inspects_runs=inspects_runs,
            can_verify_completion=can_verify_completion,
            delegation_refused_text=delegation_refused_text,
            format_argument_error=format_argument_error,
            check_call=check_call,
            access=tool_access,
            resource_of=resource_of,
        )

    return make_tool if function is None else make_tool(function)


def _check_name(name: str) -> str:
    if not TOOL_NAME.fullmatch(name):
        raise UsageError(
            f"Invalid tool name {name!r}. Use at most 64 letters, digits, _ . and -, not starting with a digit."
        )
    if name.startswith(SYSTEM_PREFIX):
        raise UsageError(
            f"Tool {name}: names that start with {SYSTEM_PREFIX} are reserved. Use another name."
        )
    return name


def _describe(name: str, text: str | None) -> str:
    """Return the description for the model; without one, the words of the name: some servers refuse an empty one."""
    return (text or "").strip() or re.sub(r"[_.-]+", " ", name).strip().capitalize() + "."


def _parse_effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError as error:
        known = ", ".join(Effect)
        raise UsageError(f"Tool {name}: unknown effect {effect!r}. Use one of {known}.") from error


def _parse_access(
    name: str, access: tuple[ToolAccess, str] | None, fields: Iterable[Field]
) -> tuple[ToolAccess, Callable[[Mapping[str, Any]], str] | None]:
    """Return the kind of access, and a function that reads its argument; a missing path is the workspace."""
    if access is None:
        return "tool", None
    kind, argument = access
    if kind not in RESOURCE_ACCESS_KINDS:
        known = ", ".join(RESOURCE_ACCESS_KINDS)
        raise UsageError(f"Tool {name}: unknown access {kind!r}. Use one of {known}.")
    if argument not in (field[0] for field in fields):
        raise UsageError(f"Tool {name}: access names the argument {argument!r}, which it does not have.")
    return kind, lambda arguments: str(arguments.get(argument) or ".")


def _parse_ask_policy(
    name: str, asks: ApprovalRequirement | str | None, effect: Effect, *, is_delegation: bool
) -> ApprovalRequirement:
    if asks is None:
        return (
            ApprovalRequirement.NEVER
            if effect is Effect.READ or is_delegation
            else ApprovalRequirement.UNLESS_GRANTED
        )
    try:
        return ApprovalRequirement(asks)
    except ValueError:
        known = ", ".join(repr(str(each)) for each in ApprovalRequirement)
        raise UsageError(f"Tool {name}: unknown value {asks!r} for asks. Use one of {known}.") from None


def _parse_signature(name: str, function: Function) -> tuple[list[Field], str | None]:
    """Return the arguments, and the name of the parameter that receives the call."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(f"Tool {name} has an annotation that cannot be resolved: {error}") from error
    call_name: str | None = None
    fields: list[Field] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _ACCEPTED_PARAMETERS or parameter.name not in hints:
            raise UsageError(
                f"Tool {name}: the parameter {parameter.name} must be a named parameter with a type."
            )
        if hints[parameter.name] is Call:
            call_name = parameter.name
        else:
            fields.append(_struct_field(parameter, hints[parameter.name]))
    return fields, call_name


def _argument_parser_and_schema(name: str, fields: list[Field]) -> tuple[Parse, Mapping[str, Any]]:
    """Return the argument parser and the schema, both made from one type, so that they cannot differ."""
    try:
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        schema = tool_schema(struct)
        return make_argument_parser(struct, schema), schema
    except TypeError as error:
        raise UsageError(f"Tool {name}: no JSON Schema for its arguments: {error}") from error


def _struct_field(parameter: inspect.Parameter, hint: Any) -> Field:
    annotation = _with_descriptions(hint)
    default: Any = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name, annotation
    if isinstance(default, list | dict | set):
        copy_default = cast("Callable[[], Any]", default.copy)
        return parameter.name, annotation, msgspec.field(default_factory=copy_default)
    return parameter.name, annotation, default


def _with_descriptions(hint: Any) -> Any:
    """Turn plain strings in Annotated into descriptions."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_with_descriptions, get_args(hint)))]  # noqa: UP007  (built from a tuple)
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    metas = [msgspec.Meta(description=note) if isinstance(note, str) else note for note in notes]
    for meta in metas:
        kind = Annotated[kind, meta]
    return kind


def _make_body(function: Function, call_name: str | None) -> ToolFunction:
    """Wrap the function.

    A function that is not async runs in its own thread, so that it cannot block other agents.
    """
    is_async = inspect.iscoroutinefunction(function)

    async def call_function(arguments: Mapping[str, Any], call: Call) -> str:
        keyword_arguments = {**arguments, call_name: call} if call_name else arguments
        result: Any = await (
            function(**keyword_arguments)
            if is_async
            else run_in_own_thread(lambda: function(**keyword_arguments))
        )
        if not is_async and inspect.isawaitable(result):
            result = await result
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()

    return call_function
