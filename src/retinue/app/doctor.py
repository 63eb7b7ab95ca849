"""What is well on this machine, what is not, and what to do about it."""

from dataclasses import dataclass

from retinue.app.wiring import check_model
from retinue.config import Config
from retinue.domain.agent import Agent
from retinue.domain.model import NO_MODEL, model_for
from retinue.errors import RetinueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    level: str
    """ok, warn or bad."""
    what: str
    do: str = ""


def model_findings(config: Config) -> list["Finding"]:
    default = config.default_model()
    if default is None:
        return [Finding(level="warn", what="no default model", do=NO_MODEL)]
    try:
        check_model(model_for(Agent(name="general"), None, default), config)
    except RetinueError as error:
        return [Finding(level="bad", what=f"default model {default}", do=str(error))]
    return [Finding(level="ok", what=f"default model {default}")]
