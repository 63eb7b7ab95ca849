"""Display names of agents, for people."""

from collections.abc import Callable, Iterator, Mapping


class AgentTitles(Mapping[str, str]):
    """Display names by agent, of agents whose display name differs from their name.

    The definitions are read when the first one is needed.
    """

    def __init__(self) -> None:
        self._load: Callable[[], Mapping[str, str]] = dict
        self._titles: Mapping[str, str] | None = None

    def use(self, load: Callable[[], Mapping[str, str]]) -> None:
        """Read the display names, by agent, with this function."""
        self._load, self._titles = load, None

    def title(self, agent: str) -> str:
        """Return the agent's display name, or its name."""
        return self.get(agent, agent)

    def numbered_title(self, numbered_name: str, agent: str) -> str:
        """Return the display name for a name with a number, such as `pair#2`."""
        return f"{self.title(agent)}{numbered_name.removeprefix(agent)}"

    def __getitem__(self, agent: str) -> str:
        return self._titles_by_agent()[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._titles_by_agent())

    def __len__(self) -> int:
        return len(self._titles_by_agent())

    def _titles_by_agent(self) -> Mapping[str, str]:
        if self._titles is None:
            self._titles = {name: title for name, title in self._load().items() if title.casefold() != name}
        return self._titles
