"""How a Python function becomes a tool: its signature is the schema, its docstring the description."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, cast, get_args, get_origin, overload

import msgspec

from retinue.domain.approval import Touch
from retinue.domain.system_prompt import SYSTEM_PREFIX
from retinue.domain.tool import Asks, Effect, ToolSpec
from retinue.errors import Usage
from retinue.interfaces import Body, Call, Tool
from retinue.tools.abandonable_thread import own_thread
from retinue.tools.arguments import parser
from retinue.tools.schema import schema_of

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

Function = Callable[..., Any]
Field = tuple[str, Any] | tuple[str, Any, Any]
Parse = Callable[[bytes], Mapping[str, Any]]

_TAKEN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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
    door: bool = False,
    asks: Asks | str | None = None,
    touches: tuple[Touch, str] | None = None,
    names_agent: str = "",
    looks: bool = False,
    decides: bool = False,
    forbidden: str = "",
    misread: Callable[[str], str] | None = None,
) -> Callable[[Function], Tool]: ...
def tool(  # noqa: PLR0913  (what can be said of a tool, one word each)
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str = Effect.ONCE,
    capabilities: Iterable[str] = (),
    category: str = "",
    plugin: str = "",
    door: bool = False,
    asks: Asks | str | None = None,
    touches: tuple[Touch, str] | None = None,
    names_agent: str = "",
    looks: bool = False,
    decides: bool = False,
    forbidden: str = "",
    misread: Callable[[str], str] | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Makes a tool of a function, async or not: `@tool`, or `@tool(effect="read")`. A parameter annotated
    `Call` gets the call and is not shown to the model; `Annotated[str, "text"]` describes an argument. A tool that
    only reads never asks a person; any other asks unless it says `asks="never"`. `touches` names the argument that
    holds a path or a command, so that the scope's rules are known before the tool is called. `plugin` is whose
    operation it is, so that an agent with the skill of that name can have that instead."""

    def made(function: Function) -> Tool:
        own = _name(name or getattr(function, "__name__", ""))
        fields, call_name = _signature(own, function)
        parse, schema = _faces(own, fields)
        return Tool(
            spec=ToolSpec(
                name=own,
                description=_description(own, description or inspect.getdoc(function)),
                schema=schema,
            ),
            parse=parse,
            body=_body(function, call_name),
            effect=_effect(own, effect),
            capabilities=tuple(capabilities),
            category=category,
            plugin=plugin,
            door=door,
            asks=_asks(own, asks, Effect(effect), door=door),
            names_agent=names_agent,
            looks=looks,
            decides=decides,
            forbidden=forbidden,
            misread=misread,
            touch=touches[0] if touches else "tool",
            resource=_argument(touches[1]) if touches else None,
        )

    return made if function is None else made(function)


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise Usage(
            f"{name!r} is no name for a tool: use letters, digits, _ . and -, at most 64, not starting with a digit"
        )
    if name.startswith(SYSTEM_PREFIX):
        raise Usage(f"the tool {name} must be called otherwise: names with {SYSTEM_PREFIX} are reserved")
    return name


def _description(name: str, text: str | None) -> str:
    if not text or not text.strip():
        raise Usage(f"the tool {name} needs a description: give its function a docstring")
    return text.strip()


def _effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError as error:
        known = ", ".join(Effect)
        raise Usage(f"the tool {name} has the unknown effect {effect!r}; use one of {known}") from error


def _argument(name: str) -> Callable[[Mapping[str, Any]], str]:
    """A path that is not given is the workspace."""
    return lambda arguments: str(arguments.get(name) or ".")


def _asks(name: str, asks: Asks | str | None, effect: Effect, *, door: bool) -> Asks:
    if asks is None:
        return Asks.NEVER if effect is Effect.READ or door else Asks.UNLESS_GRANTED
    try:
        return Asks(asks)
    except ValueError:
        known = ", ".join(repr(str(each)) for each in Asks)
        raise Usage(f"the tool {name} asks {asks!r}; it can say {known}") from None


def _signature(name: str, function: Function) -> tuple[list[Field], str | None]:
    """The arguments, and the name of the parameter that gets the call."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Usage(f"the tool {name} has an annotation that cannot be resolved: {error}") from error
    call_name: str | None = None
    fields: list[Field] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _TAKEN or parameter.name not in hints:
            raise Usage(f"the parameter {parameter.name} of the tool {name} needs a plain name and a type")
        if hints[parameter.name] is Call:
            call_name = parameter.name
        else:
            fields.append(_field(parameter, hints[parameter.name]))
    return fields, call_name


def _faces(name: str, fields: list[Field]) -> tuple[Parse, Mapping[str, Any]]:
    """What the tool takes, and what the model is told of it: of one type, so they cannot differ."""
    try:
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        schema = schema_of(struct)
        return parser(struct, schema), schema
    except TypeError as error:
        raise Usage(f"the arguments of the tool {name} cannot be described: {error}") from error


def _field(parameter: inspect.Parameter, hint: Any) -> Field:
    described = _described(hint)
    default: Any = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name, described
    if isinstance(default, list | dict | set):
        again = cast("Callable[[], Any]", default.copy)
        return parameter.name, described, msgspec.field(default_factory=again)
    return parameter.name, described, default


def _described(hint: Any) -> Any:
    """A plain string beside a type is its description."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_described, get_args(hint)))]  # noqa: UP007  (made of a tuple)
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    metas = [msgspec.Meta(description=note) if isinstance(note, str) else note for note in notes]
    for meta in metas:
        kind = Annotated[kind, meta]
    return kind


def _body(function: Function, call_name: str | None) -> Body:
    """A function that is not async runs in a thread, so that it cannot hold up the other agents."""
    is_async = inspect.iscoroutinefunction(function)

    async def body(arguments: Mapping[str, Any], call: Call) -> str:
        given = {**arguments, call_name: call} if call_name else arguments
        result: Any = await (function(**given) if is_async else own_thread(lambda: function(**given)))
        if not is_async and inspect.isawaitable(result):
            result = await result
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()

    return body
