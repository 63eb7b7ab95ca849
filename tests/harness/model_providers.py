"""The HTTP providers for a server at a given URL, with a made-up API key."""

from collections.abc import Callable, Mapping

from retinue.domain.providers import MODEL_APIS
from retinue.http.network import DIRECT
from retinue.interfaces import Provider
from retinue.providers.anthropic import MESSAGES
from retinue.providers.http_provider import HttpProvider
from retinue.providers.interface import ServerAccess
from retinue.providers.openai_chat import CHAT_COMPLETIONS
from retinue.providers.openai_responses import RESPONSES
from retinue.providers.stream_request import CONNECT_TIMEOUT_S
from retinue.providers.wire_format import WireFormat

API_KEY = "sk-test-0123456789abcdef"
WIRES: Mapping[str, WireFormat] = {
    "openai": CHAT_COMPLETIONS,
    "openai-responses": RESPONSES,
    "anthropic": MESSAGES,
}
"""Wire format by the name that tests give it."""


def http_provider(
    wire: str,
    url: str = "",
    api_key: Callable[[], str] | str = "",
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> HttpProvider:
    """Return a provider that knows one wire format only."""
    api = MODEL_APIS[wire.partition("-")[0]]
    return HttpProvider(
        [WIRES[wire]],
        ServerAccess(
            base_url=url or api.base_url, api_key=api_key, key_variable=api.key_variable, network=DIRECT
        ),
        connect_timeout_s=connect_timeout_s,
    )


PROVIDER_FACTORIES: Mapping[str, Callable[[str], Provider]] = {
    "openai": lambda url: http_provider("openai", url, API_KEY),
    "anthropic": lambda url: http_provider("anthropic", url, lambda: API_KEY),
}
