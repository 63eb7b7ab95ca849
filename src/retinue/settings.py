"""Every setting of the configuration file: its key, and how what stands there is read."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from retinue.domain.limits import HARD_DEPTH, Limits, Subagents
from retinue.domain.offer import Server, server_problem
from retinue.domain.price import Price
from retinue.domain.web import Misread, site
from retinue.store import dialects, values
from retinue.store import fields as definition
from retinue.store.catalogue import Inline
from retinue.store.values import Path as KeyPath
from retinue.store.values import Wrong

APPROVALS = ("ask", "auto", "deny")
SANDBOXES = ("none", "landlock", "strict")
SAFE_URL = re.compile(r"https://|http://(?:localhost|127\.[0-9.]+|\[::1\])(?=[:/]|$)")
HEADER = re.compile(r"[A-Za-z0-9-]+")
OUR_HEADERS = frozenset(
    (
        "host",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "mcp-session-id",
        "mcp-protocol-version",
    )
)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
URL = re.compile(r"https?://[^\s/]")


def settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """Typed settings by the names of Config's fields; a key that is null counts as absent."""
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key not in KEYS:
            raise Wrong((key,), f"is not a known setting{values.hint(key, KEYS)}")
        if value is not None:
            for name, each in KEYS[key](value, (key,)).items():
                if name in found:
                    raise Wrong((key,), f"says '{name}' a second time; keep one of the two")
                found[name] = each
    return found


def _limits(value: Any, path: KeyPath) -> Limits:
    found = _LIMITS(value, path)
    return Limits(**{key: each for key, each in found.items() if each is not None})


def _limit(name: str) -> values.Reader:
    if name == "max_depth":
        return values.whole(0, HARD_DEPTH)
    return values.number(0.001, 1e9) if name.endswith("seconds") else values.whole(1, 1_000_000)


def _address(value: Any, path: KeyPath) -> str:
    found = values.word(value, path)
    if not URL.match(found):
        raise Wrong(path, f"'{found[:200]}' is not an address; write it as https://host/path")
    return found


def _site(value: Any, path: KeyPath) -> str:
    found = values.word(value, path)
    try:
        site(found)
    except Misread as error:
        raise Wrong(
            path,
            f"'{found[:200]}' {error}; write docs.example.org, *.example.org, http://example.org:8080 or *",
        ) from error
    return found


_LIMITS = values.table({each.name: _limit(each.name) for each in fields(Limits)})
_DENY = values.table({"tools": values.names, "paths": values.globs, "agents": values.names})
_WEB_FETCH = values.table({"hosts": values.listed(_site)})
_PRICE = values.table(
    {name: values.number(0, 1e6) for name in ("input", "output", "cache_read")},
)
_SANDBOX = values.table({"minimum": values.one_of(SANDBOXES)})
_PROVIDER = values.table({"base_url": _address, "api_key": values.word})
_PROVIDERS = values.table({"openai": _PROVIDER, "anthropic": _PROVIDER})
_SUBAGENTS = values.table(
    {
        "allow_agents": values.names,
        "allowAgents": values.names,
        "model": values.word,
        "pool": values.flag,
    },
)


def _prices(value: Any, path: KeyPath) -> dict[str, Price]:
    """Each by its model. Null is as good as not there."""
    found: dict[str, Price] = {}
    for name, said in values.mapping(value, path).items():
        here = (*path, name)
        if said is None:
            continue
        price = {key: each for key, each in _PRICE(said, here).items() if each is not None}
        for needed in ("input", "output"):
            if needed not in price:
                raise Wrong(
                    here,
                    f"does not say what its {needed} costs: add {needed}, in dollars for a million tokens",
                )
        found[name] = Price(**price)
    return found


def _subagents(value: Any, path: KeyPath) -> Subagents:
    found = _SUBAGENTS(value, path)
    if "allow_agents" in found and "allowAgents" in found:
        raise Wrong((*path, "allowAgents"), "says the same as 'allow_agents'; keep one of the two")
    allowed = found.get("allow_agents", found.get("allowAgents"))
    return Subagents(allow_agents=allowed, model=found.get("model"), pool=found.get("pool") is not False)


def _agents(value: Any, path: KeyPath) -> dict[str, Any]:
    """Either definitions in a list, or defaults for sub-agents and the definitions beside them."""
    if isinstance(value, list):
        return {"agents": _inline(cast("list[Any]", value), path)}
    found = values.mapping(value, path)
    for key in found:
        if key not in ("defaults", "list"):
            raise Wrong((*path, key), f"is not a known key{values.hint(key, ('defaults', 'list'))}")
    settings: dict[str, Any] = {}
    if found.get("list") is not None:
        settings["agents"] = _inline(found["list"], (*path, "list"))
    if found.get("defaults") is not None:
        settings |= _defaults(found["defaults"], (*path, "defaults"))
    return settings


def _defaults(value: Any, path: KeyPath) -> dict[str, Any]:
    found = values.table({"subagents": _subagents, "model": dialects.model})(value, path)
    settings: dict[str, Any] = {}
    if found.get("subagents") is not None:
        settings["subagents"] = found["subagents"]
    if found.get("model") is not None:
        settings["model"] = found["model"].sets["model"]
    return settings


def _inline(value: Any, path: KeyPath) -> tuple[Inline, ...]:
    items = values.listed(values.mapping)(value, path)
    found: dict[str, Inline] = {}
    for at, item in enumerate(items):
        here = (*path, at)
        partial, readings = definition.interpret(item, here)
        for reading in readings:
            if reading.wrong is not None:
                raise reading.wrong
        name = partial.get("name")
        if not name:
            raise Wrong(here, "has no name; give it one with name or agentId")
        if name in found:
            raise Wrong(here, f"defines '{name}' a second time; names are unique")
        found[name] = Inline(name=name, partial=partial)
    return tuple(found.values())


def _servers(value: Any, path: KeyPath) -> tuple[Server, ...]:
    """Each by its name. Null is as good as not there."""
    found: list[Server] = []
    for name, said in values.mapping(value, path).items():
        here = (*path, name)
        if problem := server_problem(name):
            raise Wrong(here, problem)
        if said is None:
            continue
        how = {key: each for key, each in _SERVER(said, here).items() if each is not None}
        found.append(Server(name=name, **_one_way(how, here)))
    return tuple(found)


def _one_way(how: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """A program or an address, and only what goes with it."""
    if ("command" in how) == ("url" in how):
        raise Wrong(
            path, "needs one of command, the program that is started, and url, the address that is asked"
        )
    if (kind := how.pop("type", None)) is not None and (kind == "stdio") != ("command" in how):
        raise Wrong((*path, "type"), f"says {kind}, which is not how this server is reached")
    other = ("url", "headers", "bearer_env") if "command" in how else ("args", "env", "inherit", "cwd")
    for key in other:
        if key in how:
            raise Wrong((*path, key), f"does not go with {'command' if 'command' in how else 'url'}")
    return how


def _server_address(value: Any, path: KeyPath) -> str:
    """A key goes along: nobody on the way may read it."""
    found = _address(value, path)
    if not SAFE_URL.match(found) or "@" in found.partition("//")[2].partition("/")[0]:
        raise Wrong(path, "must begin with https://, or be of this machine, and hold no password")
    return found


def _headers(value: Any, path: KeyPath) -> dict[str, str]:
    found = {key: values.word(each, (*path, key)) for key, each in values.mapping(value, path).items()}
    for key, each in found.items():
        if (
            not HEADER.fullmatch(key)
            or key.lower() in OUR_HEADERS
            or not (each.isascii() and each.isprintable())
        ):
            raise Wrong(
                (*path, key), "is no header that can be set: use plain letters, and leave out our own"
            )
    return found


def _command(value: Any, path: KeyPath) -> str:
    found = values.word(value, path)
    if "/" in found and not found.startswith("/"):
        raise Wrong(path, f"'{found[:200]}' is relative; write the whole path, or a name that PATH leads to")
    return found


def _folder(value: Any, path: KeyPath) -> str:
    found = values.glob(value, path)
    if not found.startswith("/"):
        raise Wrong(path, f"'{found[:200]}' is relative; write the whole path")
    return found


def _variables(value: Any, path: KeyPath) -> dict[str, str]:
    found = {key: values.text(each, (*path, key)) for key, each in values.mapping(value, path).items()}
    for key in found:
        _variable(key, (*path, key))
    return found


def _variable(value: Any, path: KeyPath) -> str:
    found = values.word(value, path)
    if not VARIABLE.fullmatch(found):
        raise Wrong(path, f"'{found[:60]}' is no name of a variable")
    return found


_SERVER = values.table(
    {
        "type": values.one_of(("stdio", "http", "streamable-http")),
        "command": _command,
        "args": values.listed(values.text),
        "env": _variables,
        "inherit": values.listed(_variable),
        "cwd": _folder,
        "url": _server_address,
        "headers": _headers,
        "bearer_env": _variable,
        "timeout_seconds": values.number(0.1, 86_400),
        "believe_hints": values.flag,
    }
)


def _as(name: str, read: values.Reader) -> values.Reader:
    return lambda value, path: {name: read(value, path)}


def _model(value: Any, path: KeyPath) -> str:
    """Empty for `inherit`, which says nothing here."""
    return dialects.model(value, path).sets["model"] or ""


KEYS: dict[str, values.Reader] = {
    "model": _as("model", _model),
    "agents": _agents,
    "limits": _as("limits", _limits),
    "approvals": _as("approvals", values.one_of(APPROVALS)),
    "ceiling": _as("ceiling", definition.ceiling),
    "tools": _as("tools", values.listed(values.word)),
    "sandbox": lambda value, path: {"sandbox_minimum": _SANDBOX(value, path).get("minimum") or "none"},
    "deny": lambda value, path: {
        "deny": {key: each for key, each in _DENY(value, path).items() if each is not None}
    },
    "web_fetch": lambda value, path: {"web_hosts": _WEB_FETCH(value, path).get("hosts") or ()},
    "mcp": _as("mcp", _servers),
    "mcpServers": _as("mcp", _servers),
    "prices": _as("prices", _prices),
    "database": _as("database", values.word),
    "subagents": _as("subagents", _subagents),
    "schedules": _as("schedules", values.listed(values.open_map)),
    "channels": _as("channels", values.open_map),
    "providers": _as("providers", _PROVIDERS),
}
"""Every setting, and how it is read into Config's fields."""
