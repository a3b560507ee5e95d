"""Uses: who uses what, from the stage down, and refusals that tell it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ExportError
from .secrets import advice, scrubbed, secrets_in_text


@dataclass(frozen=True, slots=True)
class Use:
    """A link in the chain of use.

    Attributes:
        words: who uses something, as "decode() [In[4]]" or "stage 'decode'".
        by: who uses that, in turn; None at the stage.
    """

    words: str
    by: Use | None = None

    def then(self, words: str) -> Use:
        """Go on to what this one uses."""
        return Use(words, self)

    @property
    def chain(self) -> str:
        """All links, from here up to the stage."""
        return self.words if self.by is None else f"{self.words} <- {self.by.chain}"


def refusal(what: str, use: Use) -> ExportError:
    """Make the error for something that cannot be exported.

    Args:
        what: the culprit and the way out.
        use: who uses it.
    """
    return ExportError(scrubbed(f"{what}\n  used by: {use.chain}"))


def secret_refusal(what: str, use: Use, *, text: str = "", name: str = "") -> ExportError:
    """Make the error for something that holds a secret.

    Args:
        what: what holds it; never the secret.
        use: who uses it.
        text: source in which it stands.
        name: what it is called there, where that is known already.
    """
    names = (one for one, _ in secrets_in_text(text) if one)
    return refusal(f"{what} {advice(name or next(names, ''))}", use)
