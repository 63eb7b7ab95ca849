"""What is known about a model: its server and key, context window, prices, announced end, and learned changes."""

from collections.abc import Mapping
from typing import Any

from retinue.config.load import Config
from retinue.domain.model_turn import Model
from retinue.domain.pricing import Price, TokenRates, find_for_model
from retinue.domain.providers import MODEL_APIS
from retinue.domain.timestamps import iso_timestamp
from retinue.providers.interface import lacks_key
from retinue.providers.learned_changes import LEARNED_FILE, LearnedChange, LearnedChanges
from retinue.providers.model_catalog import catalog_date, find_end, find_model_facts
from retinue.providers.model_server import server_wires
from retinue.providers.offered_models import OfferedModel, read_offered_models, save_offered_models
from retinue.providers.request_changes import WIRE
from retinue.providers.server_models import fetch_offered_models
from retinue.worker.clock import system_clock

CONFIGURATION = "configuration"
KEY_SETTING = "api_key"


async def fetch_and_save_models(provider: str, config: Config) -> list[OfferedModel]:
    """Ask a provider's server for its models, and keep the answer in the home."""
    clock = system_clock()
    models = await fetch_offered_models(provider, config, clock.now)
    save_offered_models(config.home, config.providers[provider].base_url, models, clock)
    return models


def offered_model_row(provider: str, offered: OfferedModel, config: Config) -> dict[str, Any]:
    """Return a row of `retinue models list PROVIDER`."""
    model = f"{provider}:{offered.name}"
    window, _ = _context_window(model, offered.context_window, config)
    price, _ = _price(model, config)
    end = find_end(model, config.providers)
    return {
        "model": model,
        "context_window": window,
        "price": None if price is None else _rates_as_json(price),
        "ends": end and end.isoformat(),
    }


def describe_model(model: Model, config: Config) -> dict[str, Any]:
    """Return the facts of `retinue models show`, without asking the model's server."""
    name, server = model.full_name, config.providers.get(model.provider)
    learned: Mapping[str, LearnedChange] = {}
    offered_window = None
    if server is not None:
        base_url = server.base_url.rstrip("/")
        learned = LearnedChanges(system_clock(), config.home / LEARNED_FILE).learned_about(
            base_url, model.name
        )
        answer = read_offered_models(config.home, base_url)
        offered = (each for each in (answer.models if answer else ()) if each.name == model.name)
        offered_window = next((each.context_window for each in offered), None)
    window, window_from = _context_window(name, offered_window, config)
    price, price_from = _price(name, config)
    end = find_end(name, config.providers)
    return {
        "model": name,
        **({} if server is None else _describe_server(model, config, learned)),
        "context_window": window,
        "context_window_from": window_from,
        "price": None if price is None else _price_as_json(price),
        "price_from": price_from,
        "ends": end and end.isoformat(),
        "learned": [
            {
                "change": change,
                "treatment": each.treatment,
                "since": iso_timestamp(each.since),
                "said": each.said,
            }
            for change, each in learned.items()
        ],
    }


def format_price(rates: Mapping[str, float | None] | None) -> str:
    """Format the main rates in dollars per million tokens."""
    if rates is None:
        return ""
    return f"${rates['input']:g} in, ${rates['output']:g} out"


def readable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of `describe_model` with texts for people."""
    price, window, source = facts["price"], facts["context_window"], facts["price_from"]
    long_prompt = price and price.get("long_prompt")
    above = f"; above {long_prompt['above_tokens']:,} tokens {_all_rates(long_prompt)}" if long_prompt else ""
    return {
        **facts,
        **_readable_key(facts),
        "context_window": window and f"{window:,} tokens ({facts['context_window_from']})",
        "context_window_from": None,
        "price": price and f"per million tokens: {_all_rates(price)}{above} ({source})",
        "price_from": None,
        "learned": [
            f"{each['change']}: {each['treatment']}, since {each['since'][:10]}" for each in facts["learned"]
        ],
    }


def _readable_key(facts: Mapping[str, Any]) -> dict[str, Any]:
    if "key" not in facts:
        return {}
    missing = f"missing: set {facts['key_missing']}" if facts["key_missing"] else "none is sent"
    texts = {None: missing, KEY_SETTING: "api_key of the configuration"}
    return {"key": texts.get(facts["key"], facts["key"]), "key_missing": None}


def _all_rates(rates: Mapping[str, Any]) -> str:
    names = {
        "input": "in",
        "output": "out",
        "cache_read": "from the cache",
        "cache_write": "stored in the cache",
    }
    return ", ".join(f"${rates[name]:g} {text}" for name, text in names.items() if rates[name] is not None)


def _describe_server(model: Model, config: Config, learned: Mapping[str, LearnedChange]) -> dict[str, Any]:
    server = config.providers[model.provider]
    learned_api = learned.get(WIRE)
    api = learned_api.treatment if learned_api else server_wires(server.kind, server.base_url)[0].name
    return {
        "api": api,
        "base_url": server.base_url or None,
        "key": _key_source(model.provider, config),
        "key_missing": server.key_variable if lacks_key(model.provider, config) else None,
    }


def _key_source(provider: str, config: Config) -> str | None:
    """Return the variable or setting that a provider's key comes from, never the key."""
    server = config.providers[provider]
    api = MODEL_APIS.get(provider)
    for variable in (server.key_variable, *(api.other_key_variables if api else ())):
        if server.api_key and config.env.get(variable, "").strip() == server.api_key:
            return variable
    if server.api_key:
        return KEY_SETTING
    return "api_key_command" if server.api_key_command else None


def _context_window(model: str, offered: int | None, config: Config) -> tuple[int | None, str | None]:
    """Return the context window and who says so: the configuration, the server, or the list of a date."""
    if (configured := find_for_model(model, config.context_windows)) is not None:
        return configured, CONFIGURATION
    if offered is not None:
        return offered, "server"
    facts = find_model_facts(model, config.providers)
    if facts is None or facts.context_window is None:
        return None, None
    return facts.context_window, _list_name()


def _price(model: str, config: Config) -> tuple[Price | None, str | None]:
    if (configured := find_for_model(model, config.prices)) is not None:
        return configured, CONFIGURATION
    facts = find_model_facts(model, config.providers)
    return (None, None) if facts is None else (facts.price, _list_name())


def _list_name() -> str:
    return f"list of {catalog_date().isoformat()}"


def _price_as_json(price: Price) -> dict[str, Any]:
    if price.long_prompt is None:
        return _rates_as_json(price)
    long_prompt = _rates_as_json(price.long_prompt) | {"above_tokens": price.long_prompt_tokens}
    return _rates_as_json(price) | {"long_prompt": long_prompt}


def _rates_as_json(rates: TokenRates) -> dict[str, float | None]:
    return {
        "input": rates.input,
        "output": rates.output,
        "cache_read": rates.cache_read,
        "cache_write": rates.cache_write,
    }
