"""The HTTP providers for a server at a given URL, with a made-up API key."""

from collections.abc import Callable, Mapping

from retinue.interfaces import Provider
from retinue.providers.anthropic import AnthropicProvider
from retinue.providers.openai_chat import OpenAIChatProvider

API_KEY = "sk-test-0123456789abcdef"
PROVIDER_FACTORIES: Mapping[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIChatProvider(url, API_KEY),
    "anthropic": lambda url: AnthropicProvider(url, lambda: API_KEY),
}
