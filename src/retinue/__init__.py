"""A runtime for sub-agents: conversations are files, rights only shrink, nothing is lost."""

# pyright: reportUnsupportedDunderAll=false
# The names come by __getattr__ below, and __init__.pyi gives them their types.

from importlib import import_module

__version__ = "0.1.0"

_PROMISE = {
    "App": "retinue.app",
    "open": "retinue.app",
    "tool": "retinue.tools.define",
    "Call": "retinue.interfaces",
    "Tool": "retinue.interfaces",
    "Run": "retinue.domain.run",
    "Status": "retinue.domain.run",
    "Session": "retinue.domain.session",
    "Event": "retinue.domain.event",
    "Said": "retinue.domain.transcript",
    "Called": "retinue.domain.transcript",
    "Returned": "retinue.domain.transcript",
    "Notice": "retinue.domain.transcript",
    "RetinueError": "retinue.errors",
    "NotFound": "retinue.errors",
    "Refused": "retinue.errors",
    "Failed": "retinue.errors",
    "TimedOut": "retinue.errors",
    "Cancelled": "retinue.errors",
}

__all__ = [
    "App",
    "Call",
    "Called",
    "Cancelled",
    "Event",
    "Failed",
    "NotFound",
    "Notice",
    "Refused",
    "RetinueError",
    "Returned",
    "Run",
    "Said",
    "Session",
    "Status",
    "TimedOut",
    "Tool",
    "__version__",
    "open",
    "tool",
]


def __getattr__(name: str) -> object:
    """Each name is loaded on use: importing the package costs next to nothing."""
    if name not in _PROMISE:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    return getattr(import_module(_PROMISE[name]), name)
