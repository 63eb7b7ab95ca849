"""A made-up secret within a text, for tests that nothing shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedSecret:
    """A text with a secret in it: what stands around it stays, and the secret goes."""

    before: str = ""
    secret: str
    after: str = ""

    @property
    def text(self) -> str:
        return self.before + self.secret + self.after
