from retinue.app import App as App
from retinue.app import open as open
from retinue.app.blocking import run as run
from retinue.app.run_options import RunOptions as RunOptions
from retinue.app.run_options import SpawnOptions as SpawnOptions
from retinue.domain.event import Event as Event
from retinue.domain.run import Run as Run
from retinue.domain.run import Status as Status
from retinue.domain.session import Session as Session
from retinue.domain.transcript import Message as Message
from retinue.domain.transcript import Notice as Notice
from retinue.domain.transcript import ToolCall as ToolCall
from retinue.domain.transcript import ToolResult as ToolResult
from retinue.errors import Cancelled as Cancelled
from retinue.errors import Failed as Failed
from retinue.errors import NotFound as NotFound
from retinue.errors import Refused as Refused
from retinue.errors import RetinueError as RetinueError
from retinue.errors import TimedOut as TimedOut
from retinue.errors import UsageError as UsageError
from retinue.interfaces import Call as Call
from retinue.interfaces import Tool as Tool
from retinue.tools.define import tool as tool

__version__: str
