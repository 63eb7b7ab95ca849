"""Composition layer: build adapters from the configuration and expose them as an application."""

# pyright: reportUnsupportedDunderAll=false
# __getattr__ below resolves the names; __init__.pyi declares their types.

from importlib import import_module

_MODULE_BY_NAME = {
    "App": "retinue.app.application",
    "Finding": "retinue.app.doctor",
    "open_read_only": "retinue.app.open_app",
    "open": "retinue.app.open_app",
}

__all__ = ["App", "Finding", "open", "open_read_only"]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that listing sessions loads no models, tools or providers."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'retinue.app' has no attribute {name!r}")
    return getattr(import_module(_MODULE_BY_NAME[name]), name)
