"""The one place that chooses: configuration becomes ports, and ports become an application."""

# pyright: reportUnsupportedDunderAll=false
# The names come by __getattr__ below, and __init__.pyi gives them their types.

from importlib import import_module

_PLACES = {
    "App": "retinue.app.application",
    "Finding": "retinue.app.doctor",
    "look": "retinue.app.open_app",
    "open": "retinue.app.open_app",
}

__all__ = ["App", "Finding", "look", "open"]


def __getattr__(name: str) -> object:
    """Each name is loaded on use: whoever only lists conversations needs no models, tools or drivers."""
    if name not in _PLACES:
        raise AttributeError(f"module 'retinue.app' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
