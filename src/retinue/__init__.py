"""A runtime for agents and sub-agents: conversations are files, permissions only narrow, crashes lose nothing."""

# pyright: reportUnsupportedDunderAll=false
# Names are provided by __getattr__ below; __init__.pyi declares their types.

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "App": "retinue.app",
    "open": "retinue.app",
    "run": "retinue.app.blocking",
    "RunOptions": "retinue.app.run_options",
    "SpawnOptions": "retinue.app.run_options",
    "tool": "retinue.tools.define",
    "Call": "retinue.interfaces",
    "Tool": "retinue.interfaces",
    "Run": "retinue.domain.run",
    "Status": "retinue.domain.run",
    "Session": "retinue.domain.session",
    "Event": "retinue.domain.event",
    "Message": "retinue.domain.transcript",
    "ToolCall": "retinue.domain.transcript",
    "ToolResult": "retinue.domain.transcript",
    "Notice": "retinue.domain.transcript",
    "RetinueError": "retinue.errors",
    "NotFound": "retinue.errors",
    "Refused": "retinue.errors",
    "Failed": "retinue.errors",
    "TimedOut": "retinue.errors",
    "UsageError": "retinue.errors",
    "Cancelled": "retinue.errors",
}

__all__ = [
    "App",
    "Call",
    "Cancelled",
    "Event",
    "Failed",
    "Message",
    "NotFound",
    "Notice",
    "Refused",
    "RetinueError",
    "Run",
    "RunOptions",
    "Session",
    "SpawnOptions",
    "Status",
    "TimedOut",
    "Tool",
    "ToolCall",
    "ToolResult",
    "UsageError",
    "__version__",
    "open",
    "run",
    "tool",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that importing the package is cheap."""
    if name not in _PUBLIC_NAMES:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
