"""Schema of the configuration file: every key, and how its value is parsed."""

import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import fields

from retinue.agents import fields as definition
from retinue.agents import validators
from retinue.agents.dialects import key_translators
from retinue.agents.registry import InlineDefinition
from retinue.agents.validators import InvalidValue, KeyPath
from retinue.domain.limits import (
    MAX_CHILD_RESULT_CHARS,
    MAX_CONFIGURABLE_DEPTH,
    MIN_CHILD_RESULT_CHARS,
    Limits,
    RetentionSettings,
    SubagentSettings,
)
from retinue.domain.mcp import McpServerConfig, server_name_problem
from retinue.domain.permissions.urls import InvalidUrl, parse_site
from retinue.domain.pricing import Price
from retinue.domain.providers import API_KINDS, MODEL_APIS, find_provider

APPROVAL_POLICIES = ("ask", "auto", "deny")
SANDBOX_LEVELS = ("none", "landlock", "strict")
SECURE_URL = re.compile(r"https://|http://(?:localhost|127\.[0-9.]+|\[::1\])(?=[:/]|$)")
HEADER_NAME = re.compile(r"[A-Za-z0-9-]+")
RESERVED_HEADERS = frozenset(
    (
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "content-type",
        "content-length",
        "expect",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "mcp-session-id",
        "mcp-protocol-version",
    )
)
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
URL_PREFIX = re.compile(r"https?://[^\s/]")


def parse_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the configuration into the fields of Config; a null key counts as absent."""
    parsed: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in SETTING_READERS:
            hint = validators.known_names_hint(key, SETTING_READERS)
            raise InvalidValue((key,), UNSUPPORTED_SETTINGS.get(key, f"is not a known setting{hint}"))
        if value is not None:
            for name, each in SETTING_READERS[key](value, (key,)).items():
                if name in parsed:
                    raise InvalidValue((key,), f"sets '{name}' a second time; remove one of the two")
                parsed[name] = each
    return parsed


def _parse_limits(value: Any, path: KeyPath) -> Limits:
    limits = _LIMITS(value, path)
    return Limits(**{key: each for key, each in limits.items() if each is not None})


def _parse_retention(value: Any, path: KeyPath) -> RetentionSettings:
    settings = _RETENTION(value, path)
    return RetentionSettings(**{key: each for key, each in settings.items() if each is not None})


def _limit_reader(name: str) -> validators.Validator:
    if name == "max_depth":
        return validators.integer_between(0, MAX_CONFIGURABLE_DEPTH)
    if name == "child_result_chars":
        return validators.integer_between(MIN_CHILD_RESULT_CHARS, MAX_CHILD_RESULT_CHARS)
    return (
        validators.number_between(0.001, 1e9)
        if name.endswith("seconds")
        else validators.integer_between(1, 1_000_000)
    )


def _parse_url(value: Any, path: KeyPath) -> str:
    url = validators.line_value(value, path)
    if not URL_PREFIX.match(url):
        raise InvalidValue(path, f"'{url[:200]}' is not a URL; write it as https://host/path")
    return url


def _parse_site(value: Any, path: KeyPath) -> str:
    text = validators.line_value(value, path)
    try:
        parse_site(text)
    except InvalidUrl as error:
        raise InvalidValue(
            path,
            f"'{text[:200]}' {error}; write docs.example.org, *.example.org, http://example.org:8080 or *",
        ) from error
    return text


_LIMITS = validators.map_with_keys({each.name: _limit_reader(each.name) for each in fields(Limits)})
_DENY = validators.map_with_keys(
    {"tools": validators.name_list, "paths": validators.path_globs, "agents": validators.name_list}
)
_WEB_FETCH = validators.map_with_keys({"hosts": validators.list_of(_parse_site)})
_PRICE = validators.map_with_keys(
    {name: validators.number_between(0, 1e6) for name in ("input", "output", "cache_read", "cache_write")},
)
_CONTEXT_WINDOW = validators.integer_between(1, 10**9)
_SANDBOX = validators.map_with_keys({"minimum": validators.one_of(SANDBOX_LEVELS)})


def _parse_header_values(value: Any, path: KeyPath) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, raw in validators.string_map(value, path).items():
        item_path = (*path, name)
        if not HEADER_NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise InvalidValue(item_path, "is not a header that can be set")
        headers[name] = validators.line_value(raw, item_path)
    return headers


_PROVIDER = validators.map_with_keys(
    {
        "kind": validators.one_of(API_KINDS),
        "base_url": _parse_url,
        "api_key": validators.line_value,
        "api_key_env": validators.line_value,
        "api_key_command": validators.line_value,
        "headers": _parse_header_values,
        "body": validators.string_map,
        "models": validators.name_list,
        "max_concurrent": validators.integer_between(1, 1_000_000),
        "requests_per_minute": validators.number_between(0.001, 1e9),
        "allow_http": validators.bool_value,
        "retry_seconds": validators.number_between(0, 86_400),
        "reply_seconds": validators.number_between(0.001, 1e9),
        "idle_seconds": validators.number_between(0.001, 1e9),
    }
)
PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def _parse_providers(value: Any, path: KeyPath) -> dict[str, Any]:
    """Parse the model servers by name: known ones, and the user's own, which need an address and a kind."""
    servers: dict[str, Any] = {}
    for name, raw in validators.string_map(value, path).items():
        item_path = (*path, name)
        if raw is None:
            continue
        servers[name] = given = _PROVIDER(raw, item_path)
        _check_one_key_source(given, item_path)
        if name in MODEL_APIS:
            continue
        if find_provider(name) is not None or not PROVIDER_NAME.fullmatch(name):
            hint = validators.known_names_hint(name, MODEL_APIS)
            raise InvalidValue(item_path, f"is not a name for a model server{hint}")
        for required in ("base_url", "kind"):
            if not given.get(required):
                hint = validators.known_names_hint(name, MODEL_APIS)
                problem = (
                    f"has no {required}; add one of {', '.join(API_KINDS)}"
                    if required == "kind"
                    else "has no base_url; add https://host/path"
                )
                raise InvalidValue(item_path, f"{problem}{hint}")
    return servers


def _check_one_key_source(given: Mapping[str, Any], path: KeyPath) -> None:
    sources = [name for name in ("api_key", "api_key_env", "api_key_command") if given.get(name)]
    if len(sources) > 1:
        raise InvalidValue(path, f"has {' and '.join(sources)}; keep one of them")


_RETENTION = validators.map_with_keys(
    {
        "runs_days": validators.number_between(0, 100_000),
        "events_days": validators.number_between(0, 100_000),
        "ledger_mb": validators.number_between(1, 1e9),
    }
)
_SUBAGENTS = validators.map_with_keys(
    {
        "allow_agents": validators.name_list,
        "allowAgents": validators.name_list,
        "model": validators.line_value,
        "pool": validators.bool_value,
    },
)


def _parse_prices(value: Any, path: KeyPath) -> dict[str, Price]:
    """Parse the prices by model; null counts as absent."""
    prices: dict[str, Price] = {}
    for name, raw in validators.string_map(value, path).items():
        item_path = (*path, name)
        if raw is None:
            continue
        price = {key: each for key, each in _PRICE(raw, item_path).items() if each is not None}
        for required in ("input", "output"):
            if required not in price:
                raise InvalidValue(
                    item_path,
                    f"has no {required} price; add {required}, in dollars per million tokens",
                )
        prices[name] = Price(**price)
    return prices


def _parse_context_windows(value: Any, path: KeyPath) -> dict[str, int]:
    """Parse the context windows by model; null counts as absent."""
    windows = validators.string_map(value, path)
    return {name: _CONTEXT_WINDOW(raw, (*path, name)) for name, raw in windows.items() if raw is not None}


def _parse_subagents(value: Any, path: KeyPath) -> SubagentSettings:
    fields_given = _SUBAGENTS(value, path)
    if "allow_agents" in fields_given and "allowAgents" in fields_given:
        raise InvalidValue(
            (*path, "allowAgents"), "is the same setting as 'allow_agents'; remove one of the two"
        )
    allowed = fields_given.get("allow_agents", fields_given.get("allowAgents"))
    return SubagentSettings(
        allow_agents=allowed,
        model=fields_given.get("model"),
        pool_enabled=fields_given.get("pool") is not False,
    )


def _parse_agents(value: Any, path: KeyPath) -> dict[str, Any]:
    """Parse a list of definitions, or the defaults for sub-agents together with a list."""
    if isinstance(value, list):
        return {"agents": _parse_inline_agents(cast("list[Any]", value), path)}
    section = validators.string_map(value, path)
    for key in section:
        if key not in ("defaults", "list"):
            raise InvalidValue(
                (*path, key), f"is not a known key{validators.known_names_hint(key, ('defaults', 'list'))}"
            )
    parsed: dict[str, Any] = {}
    if section.get("list") is not None:
        parsed["agents"] = _parse_inline_agents(section["list"], (*path, "list"))
    if section.get("defaults") is not None:
        parsed |= _parse_agent_defaults(section["defaults"], (*path, "defaults"))
    return parsed


def _parse_agent_defaults(value: Any, path: KeyPath) -> dict[str, Any]:
    section = validators.map_with_keys(
        {"subagents": _parse_subagents, "model": key_translators.translate_model}
    )(value, path)
    parsed: dict[str, Any] = {}
    if section.get("subagents") is not None:
        parsed["subagents"] = section["subagents"]
    if section.get("model") is not None:
        parsed |= section["model"].fields
    return parsed


def _parse_inline_agents(value: Any, path: KeyPath) -> tuple[InlineDefinition, ...]:
    items = validators.list_of(validators.string_map)(value, path)
    agents: dict[str, InlineDefinition] = {}
    for at, item in enumerate(items):
        item_path = (*path, at)
        partial, readings = definition.interpret_fields(item, item_path)
        for reading in readings:
            if reading.error is not None:
                raise reading.error
        name = partial.get("name")
        if not name:
            raise InvalidValue(item_path, "has no name; give it one with name or agentId")
        if name in agents:
            raise InvalidValue(item_path, f"defines '{name}' a second time; names must be unique")
        agents[name] = InlineDefinition(name=name, partial=partial)
    return tuple(agents.values())


def _parse_mcp_servers(value: Any, path: KeyPath) -> tuple[McpServerConfig, ...]:
    """Parse the MCP servers by name; null counts as absent."""
    servers: list[McpServerConfig] = []
    for name, raw in validators.string_map(value, path).items():
        item_path = (*path, name)
        if problem := server_name_problem(name):
            raise InvalidValue(item_path, problem)
        if raw is None:
            continue
        fields_given = {key: each for key, each in _SERVER(raw, item_path).items() if each is not None}
        servers.append(McpServerConfig(name=name, **_check_one_transport(fields_given, item_path)))
    return tuple(servers)


def _check_one_transport(fields_given: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Check that there is either a command or a URL, and only keys that go with it."""
    if ("command" in fields_given) == ("url" in fields_given):
        raise InvalidValue(
            path, "requires either command (the program to start) or url (the server's address)"
        )
    if (transport := fields_given.pop("type", None)) is not None and (transport == "stdio") != (
        "command" in fields_given
    ):
        raise InvalidValue(
            (*path, "type"),
            f"'{transport}' does not match {'command' if 'command' in fields_given else 'url'}",
        )
    excluded_keys = (
        ("url", "headers", "bearer_env") if "command" in fields_given else ("args", "env", "inherit", "cwd")
    )
    for key in excluded_keys:
        if key in fields_given:
            raise InvalidValue(
                (*path, key), f"cannot be combined with {'command' if 'command' in fields_given else 'url'}"
            )
    return fields_given


def _parse_mcp_url(value: Any, path: KeyPath) -> str:
    """Parse the URL of a server that receives a key, which must be encrypted in transit."""
    url = _parse_url(value, path)
    if not SECURE_URL.match(url) or "@" in url.partition("//")[2].partition("/")[0]:
        raise InvalidValue(
            path, "must begin with https:// (or http:// for this machine), and must not contain a password"
        )
    return url


def _parse_headers(value: Any, path: KeyPath) -> dict[str, str]:
    headers = {
        key: validators.line_value(each, (*path, key))
        for key, each in validators.string_map(value, path).items()
    }
    for key, each in headers.items():
        if (
            not HEADER_NAME.fullmatch(key)
            or key.lower() in RESERVED_HEADERS
            or not (each.isascii() and each.isprintable())
        ):
            raise InvalidValue(
                (*path, key), "is not a header that can be set; use ASCII, and no header that Retinue sets"
            )
    return headers


def _parse_command(value: Any, path: KeyPath) -> str:
    command = validators.line_value(value, path)
    if "/" in command and not command.startswith("/"):
        raise InvalidValue(
            path, f"'{command[:200]}' is relative; write an absolute path, or a program name found on PATH"
        )
    return command


def _parse_folder(value: Any, path: KeyPath) -> str:
    folder = validators.path_glob(value, path)
    if not folder.startswith("/"):
        raise InvalidValue(path, f"'{folder[:200]}' is relative; write an absolute path")
    return folder


def _parse_variables(value: Any, path: KeyPath) -> dict[str, str]:
    variables = {
        key: validators.text_value(each, (*path, key))
        for key, each in validators.string_map(value, path).items()
    }
    for key in variables:
        _parse_variable_name(key, (*path, key))
    return variables


def _parse_variable_name(value: Any, path: KeyPath) -> str:
    name = validators.line_value(value, path)
    if not VARIABLE_NAME.fullmatch(name):
        raise InvalidValue(path, f"'{name[:60]}' is not a variable name")
    return name


_SERVER = validators.map_with_keys(
    {
        "type": validators.one_of(("stdio", "http", "streamable-http")),
        "command": _parse_command,
        "args": validators.list_of(validators.text_value),
        "env": _parse_variables,
        "inherit": validators.list_of(_parse_variable_name),
        "cwd": _parse_folder,
        "url": _parse_mcp_url,
        "headers": _parse_headers,
        "bearer_env": _parse_variable_name,
        "timeout_seconds": validators.number_between(0.1, 86_400),
        "believe_hints": validators.bool_value,
    }
)


def _as_field(name: str, reader: validators.Validator) -> validators.Validator:
    return lambda value, path: {name: reader(value, path)}


def _parse_model(value: Any, path: KeyPath) -> dict[str, Any]:
    """Parse the model, which may come with fallbacks; an empty string for `inherit`, which has no meaning here."""
    fields_given = key_translators.translate_model(value, path).fields
    return {**fields_given, "model": fields_given["model"] or ""}


UNSUPPORTED_SETTINGS = {
    "channels": "is not supported yet; remove it",
    "schedules": "is not a known setting; schedules are not part of the configuration, remove it",
}
"""Settings that are planned, or of earlier releases → the error message. No message suggests them."""

SETTING_READERS: dict[str, validators.Validator] = {
    "model": _parse_model,
    "fallback_models": lambda value, path: key_translators.translate_fallback_models(value, path).fields,
    "agents": _parse_agents,
    "limits": _as_field("limits", _parse_limits),
    "retention": _as_field("retention", _parse_retention),
    "approvals": _as_field("approvals", validators.one_of(APPROVAL_POLICIES)),
    "ceiling": _as_field("ceiling", definition.ceiling_value),
    "tools": _as_field("tools", validators.list_of(validators.line_value)),
    "sandbox": lambda value, path: {"sandbox_minimum": _SANDBOX(value, path).get("minimum") or "none"},
    "deny": lambda value, path: {
        "deny": {key: each for key, each in _DENY(value, path).items() if each is not None}
    },
    "web_fetch": lambda value, path: {"web_hosts": _WEB_FETCH(value, path).get("hosts") or ()},
    "mcp": _as_field("mcp", _parse_mcp_servers),
    "mcpServers": _as_field("mcp", _parse_mcp_servers),
    "prices": _as_field("prices", _parse_prices),
    "context_windows": _as_field("context_windows", _parse_context_windows),
    "database": _as_field("database", validators.line_value),
    "subagents": _as_field("subagents", _parse_subagents),
    "providers": _as_field("providers", _parse_providers),
}
"""Reader of every setting, returning fields of Config."""
