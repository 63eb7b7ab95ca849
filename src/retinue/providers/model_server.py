"""Creates the providers of model servers: which API each is asked over."""

from collections.abc import Mapping, Sequence

from retinue.domain.model_turn import Model
from retinue.domain.providers import ANTHROPIC, MODEL_APIS, OPENAI, OPENAI_CHAT, OPENAI_RESPONSES
from retinue.providers.anthropic import MESSAGES
from retinue.providers.http_provider import HttpProvider
from retinue.providers.interface import ProviderServices, ProviderSettings, server_access
from retinue.providers.key_command import KeyCommand
from retinue.providers.openai_chat import CHAT_COMPLETIONS
from retinue.providers.openai_responses import RESPONSES
from retinue.providers.wire_format import WireFormat

_WIRES_BY_KIND: Mapping[str, Sequence[WireFormat]] = {
    OPENAI_CHAT: (CHAT_COMPLETIONS,),
    OPENAI_RESPONSES: (RESPONSES,),
    ANTHROPIC: (MESSAGES,),
}


def create_provider(model: Model, settings: ProviderSettings, services: ProviderServices) -> HttpProvider:
    access = server_access(model, settings)
    wires = server_wires(settings.providers[model.provider].kind, access.base_url)
    key_command = (
        KeyCommand(access.key_command, services.add_secret, services.now) if access.key_command else None
    )
    return HttpProvider(wires, access, learned=services.learned_changes, key_command=key_command)


def server_wires(kind: str, base_url: str) -> Sequence[WireFormat]:
    """Return the APIs of a server, the one to begin with first.

    OpenAI's newest models accept tools only on the Responses API; most other servers know only Chat Completions. The
    other API is used if the server names it, unless the user chose one.
    """
    if kind != OPENAI:
        return _WIRES_BY_KIND[kind]
    is_openai = base_url.rstrip("/") == MODEL_APIS["openai"].base_url
    return (RESPONSES, CHAT_COMPLETIONS) if is_openai else (CHAT_COMPLETIONS, RESPONSES)
