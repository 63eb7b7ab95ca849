"""Provider registry: imports the functions named in the provider table on first use."""

import importlib
from collections.abc import Callable
from typing import cast

from retinue.domain.model_turn import Model
from retinue.domain.providers import MODEL_SERVER, PROVIDERS, CliAgentKind, ProviderSpec
from retinue.errors import BadConfig
from retinue.interfaces import Provider
from retinue.providers.interface import (
    CheckModel,
    CreateProvider,
    ListedModel,
    ListModels,
    ProviderServices,
    ProviderSettings,
    lacks_key,
    own_base_url,
    server_access,
)
from retinue.search_path import find_executable


def provider_factories(
    settings: ProviderSettings, services: ProviderServices
) -> dict[str, Callable[[Model], Provider]]:
    """Return a factory for each provider; a provider's module is imported on first use."""

    def create_provider(model: Model) -> Provider:
        spec = PROVIDERS.get(model.provider)
        create = cast("CreateProvider", load_function(spec.create if spec else MODEL_SERVER))
        return create(model, settings, services)

    return dict.fromkeys([*PROVIDERS, *settings.providers], create_provider)


def check_model(model: Model, settings: ProviderSettings) -> None:
    """Raise BadConfig, with what to do, if the model cannot be used here."""
    spec = PROVIDERS.get(model.provider)
    if spec is None:
        if model.provider not in settings.providers:
            raise BadConfig(f"There is no provider {model.provider} for model {model.full_name}")
        _check_key(model, settings)
    elif spec.check:
        cast("CheckModel", load_function(spec.check))(model, settings)
    elif spec.cli_agent is not None:
        _check_program(spec.cli_agent, settings)
    elif spec.api is not None:
        _check_key(model, settings)


def usable_default_model(settings: ProviderSettings) -> str | None:
    """Return the first default model that needs no key and can be used, or None."""
    for spec in PROVIDERS.values():
        if spec.api is None and spec.default_model and _default_model_error(spec, settings) is None:
            return spec.default_model
    return None


def listed_models(settings: ProviderSettings) -> list[ListedModel]:
    """Return the rows of `retinue models list`: models of servers first, then the others."""
    specs = sorted(PROVIDERS.values(), key=lambda spec: spec.api is None)
    named = [each for provider in settings.providers for each in configured_models(provider, settings)]
    return [*named, *(model for spec in specs for model in listed_models_of(spec, settings))]


def configured_models(provider: str, settings: ProviderSettings) -> list[ListedModel]:
    """Return the models that the user lists for a provider."""
    has_key = not lacks_key(provider, settings)
    variable = settings.providers[provider].key_variable
    return [
        ListedModel(
            model=f"{provider}:{name}",
            state="configured" if has_key else f"no key: set {variable}",
            about="",
            is_usable=has_key,
        )
        for name in settings.providers[provider].models
    ]


def load_function(reference: str) -> object:
    """Import a function by its reference `module:function`."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _check_program(program: CliAgentKind, settings: ProviderSettings) -> None:
    if find_executable(program.binary, settings.env) is None:
        raise BadConfig(
            f"{program.binary} is not installed or not on the PATH. Install it with `{program.install}`."
        )


def _check_key(model: Model, settings: ProviderSettings) -> None:
    server_access(model, settings)
    if not own_base_url(model) and lacks_key(model.provider, settings):
        variable = settings.providers[model.provider].key_variable
        raise BadConfig(f"No API key for {model.full_name}. Set {variable}.")


def _default_model_error(spec: ProviderSpec, settings: ProviderSettings) -> BadConfig | None:
    try:
        check_model(Model(provider=spec.name, name=spec.default_model_name), settings)
    except BadConfig as error:
        return error
    return None


def listed_models_of(spec: ProviderSpec, settings: ProviderSettings) -> list[ListedModel]:
    if spec.list_models:
        return [*cast("ListModels", load_function(spec.list_models))(settings)]
    if not spec.default_model:
        return []
    error = _default_model_error(spec, settings)
    if spec.api is None:
        state, about = str(error or "available"), ""
    else:
        server = settings.providers[spec.name]
        state = (
            "key is set"
            if server.api_key
            else f"at {server.base_url}"
            if error is None
            else f"no key: set {spec.api.key_variable}"
        )
        about = "and all other models of this server"
    return [ListedModel(model=spec.default_model, state=state, about=about, is_usable=error is None)]
