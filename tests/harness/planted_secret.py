"""Made-up secrets within texts, for tests of redaction."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedSecret:
    """A text that contains a secret; redaction removes the secret and keeps the text around it."""

    before: str = ""
    secret: str
    after: str = ""

    @property
    def text(self) -> str:
        return self.before + self.secret + self.after
