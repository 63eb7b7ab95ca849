"""Builds a request to a model."""

from collections.abc import Sequence

from retinue.domain.model_turn import Model, ModelRequest
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry


def make_model_request(
    model: Model,
    entries: Sequence[Entry] = (),
    *,
    agent_name: str = "a",
    system: str = "",
    tools: tuple[ToolSpec, ...] = (),
    is_probe: bool = False,
) -> ModelRequest:
    return ModelRequest(
        model=model,
        agent_name=agent_name,
        system=system,
        tools=tools,
        entries=entries,
        provider_cache={},
        is_probe=is_probe,
    )
