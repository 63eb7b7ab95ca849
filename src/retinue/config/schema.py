"""Every setting of the configuration file: its key, and how what stands there is read."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from retinue.agents import fields as definition
from retinue.agents import validators
from retinue.agents.dialects import key_aliases
from retinue.agents.registry import Inline
from retinue.agents.validators import Path as KeyPath
from retinue.agents.validators import Wrong
from retinue.domain.limits import HARD_DEPTH, Limits, Subagents
from retinue.domain.mcp_tool import Server, server_problem
from retinue.domain.permissions.urls import Misread, site
from retinue.domain.pricing import Price

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
            raise Wrong((key,), f"is not a known setting{validators.hint(key, KEYS)}")
        if value is not None:
            for name, each in KEYS[key](value, (key,)).items():
                if name in found:
                    raise Wrong((key,), f"says '{name}' a second time; keep one of the two")
                found[name] = each
    return found


def _limits(value: Any, path: KeyPath) -> Limits:
    found = _LIMITS(value, path)
    return Limits(**{key: each for key, each in found.items() if each is not None})


def _limit(name: str) -> validators.Reader:
    if name == "max_depth":
        return validators.whole(0, HARD_DEPTH)
    return validators.number(0.001, 1e9) if name.endswith("seconds") else validators.whole(1, 1_000_000)


def _address(value: Any, path: KeyPath) -> str:
    found = validators.word(value, path)
    if not URL.match(found):
        raise Wrong(path, f"'{found[:200]}' is not an address; write it as https://host/path")
    return found


def _site(value: Any, path: KeyPath) -> str:
    found = validators.word(value, path)
    try:
        site(found)
    except Misread as error:
        raise Wrong(
            path,
            f"'{found[:200]}' {error}; write docs.example.org, *.example.org, http://example.org:8080 or *",
        ) from error
    return found


_LIMITS = validators.table({each.name: _limit(each.name) for each in fields(Limits)})
_DENY = validators.table({"tools": validators.names, "paths": validators.globs, "agents": validators.names})
_WEB_FETCH = validators.table({"hosts": validators.listed(_site)})
_PRICE = validators.table(
    {name: validators.number(0, 1e6) for name in ("input", "output", "cache_read")},
)
_SANDBOX = validators.table({"minimum": validators.one_of(SANDBOXES)})
_PROVIDER = validators.table({"base_url": _address, "api_key": validators.word})
_PROVIDERS = validators.table({"openai": _PROVIDER, "anthropic": _PROVIDER})
_SUBAGENTS = validators.table(
    {
        "allow_agents": validators.names,
        "allowAgents": validators.names,
        "model": validators.word,
        "pool": validators.flag,
    },
)


def _prices(value: Any, path: KeyPath) -> dict[str, Price]:
    """Each by its model. Null is as good as not there."""
    found: dict[str, Price] = {}
    for name, said in validators.mapping(value, path).items():
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
    found = validators.mapping(value, path)
    for key in found:
        if key not in ("defaults", "list"):
            raise Wrong((*path, key), f"is not a known key{validators.hint(key, ('defaults', 'list'))}")
    settings: dict[str, Any] = {}
    if found.get("list") is not None:
        settings["agents"] = _inline(found["list"], (*path, "list"))
    if found.get("defaults") is not None:
        settings |= _defaults(found["defaults"], (*path, "defaults"))
    return settings


def _defaults(value: Any, path: KeyPath) -> dict[str, Any]:
    found = validators.table({"subagents": _subagents, "model": key_aliases.model})(value, path)
    settings: dict[str, Any] = {}
    if found.get("subagents") is not None:
        settings["subagents"] = found["subagents"]
    if found.get("model") is not None:
        settings["model"] = found["model"].sets["model"]
    return settings


def _inline(value: Any, path: KeyPath) -> tuple[Inline, ...]:
    items = validators.listed(validators.mapping)(value, path)
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
    for name, said in validators.mapping(value, path).items():
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
    found = {
        key: validators.word(each, (*path, key)) for key, each in validators.mapping(value, path).items()
    }
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
    found = validators.word(value, path)
    if "/" in found and not found.startswith("/"):
        raise Wrong(path, f"'{found[:200]}' is relative; write the whole path, or a name that PATH leads to")
    return found


def _folder(value: Any, path: KeyPath) -> str:
    found = validators.glob(value, path)
    if not found.startswith("/"):
        raise Wrong(path, f"'{found[:200]}' is relative; write the whole path")
    return found


def _variables(value: Any, path: KeyPath) -> dict[str, str]:
    found = {
        key: validators.text(each, (*path, key)) for key, each in validators.mapping(value, path).items()
    }
    for key in found:
        _variable(key, (*path, key))
    return found


def _variable(value: Any, path: KeyPath) -> str:
    found = validators.word(value, path)
    if not VARIABLE.fullmatch(found):
        raise Wrong(path, f"'{found[:60]}' is no name of a variable")
    return found


_SERVER = validators.table(
    {
        "type": validators.one_of(("stdio", "http", "streamable-http")),
        "command": _command,
        "args": validators.listed(validators.text),
        "env": _variables,
        "inherit": validators.listed(_variable),
        "cwd": _folder,
        "url": _server_address,
        "headers": _headers,
        "bearer_env": _variable,
        "timeout_seconds": validators.number(0.1, 86_400),
        "believe_hints": validators.flag,
    }
)


def _as(name: str, read: validators.Reader) -> validators.Reader:
    return lambda value, path: {name: read(value, path)}


def _model(value: Any, path: KeyPath) -> str:
    """Empty for `inherit`, which says nothing here."""
    return key_aliases.model(value, path).sets["model"] or ""


KEYS: dict[str, validators.Reader] = {
    "model": _as("model", _model),
    "agents": _agents,
    "limits": _as("limits", _limits),
    "approvals": _as("approvals", validators.one_of(APPROVALS)),
    "ceiling": _as("ceiling", definition.ceiling),
    "tools": _as("tools", validators.listed(validators.word)),
    "sandbox": lambda value, path: {"sandbox_minimum": _SANDBOX(value, path).get("minimum") or "none"},
    "deny": lambda value, path: {
        "deny": {key: each for key, each in _DENY(value, path).items() if each is not None}
    },
    "web_fetch": lambda value, path: {"web_hosts": _WEB_FETCH(value, path).get("hosts") or ()},
    "mcp": _as("mcp", _servers),
    "mcpServers": _as("mcp", _servers),
    "prices": _as("prices", _prices),
    "database": _as("database", validators.word),
    "subagents": _as("subagents", _subagents),
    "schedules": _as("schedules", validators.listed(validators.open_map)),
    "channels": _as("channels", validators.open_map),
    "providers": _as("providers", _PROVIDERS),
}
"""Every setting, and how it is read into Config's fields."""
