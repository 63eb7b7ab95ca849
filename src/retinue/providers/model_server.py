"""Creates the providers of model servers: which API each is asked over."""

from collections.abc import Sequence

from retinue.domain.model_turn import Model
from retinue.domain.providers import MODEL_APIS
from retinue.providers.anthropic import MESSAGES
from retinue.providers.http_provider import HttpProvider
from retinue.providers.interface import ProviderServices, ProviderSettings, server_access
from retinue.providers.openai_chat import CHAT_COMPLETIONS
from retinue.providers.openai_responses import RESPONSES
from retinue.providers.wire_format import WireFormat


def create_openai_provider(
    model: Model, settings: ProviderSettings, services: ProviderServices
) -> HttpProvider:
    access = server_access(model, settings)
    return HttpProvider(openai_wires(access.base_url), access, learned=services.learned_changes)


def create_anthropic_provider(
    model: Model, settings: ProviderSettings, services: ProviderServices
) -> HttpProvider:
    return HttpProvider([MESSAGES], server_access(model, settings), learned=services.learned_changes)


def openai_wires(base_url: str) -> Sequence[WireFormat]:
    """Return the APIs of a server that is compatible with OpenAI, the one to begin with first.

    OpenAI's newest models accept tools only on the Responses API; most other servers know only Chat Completions.
    """
    is_openai = base_url.rstrip("/") == MODEL_APIS["openai"].base_url
    return (RESPONSES, CHAT_COMPLETIONS) if is_openai else (CHAT_COMPLETIONS, RESPONSES)
