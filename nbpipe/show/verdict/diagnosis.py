"""Diagnosis: what was found about a run, how it was seen, and what to do."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import Literal

from ...base.format import plain, shortened

LIMITS, KEEPS_UP, SLOWER, SLOWS = "limits", "keeps_up", "slower", "slows"
HANGS, STARTS, FAILED, EMPTY = "hangs", "starts", "failed", "empty"
GOOD, INFO, WARNING, ERROR = "good", "info", "warning", "error"
_SEVERITIES = {KEEPS_UP: GOOD, SLOWS: WARNING, EMPTY: WARNING, HANGS: ERROR, FAILED: ERROR}
PRICE = "They take seconds to start and the memory of an interpreter each."  # of processes
_NAME = 60
_STYLES = ("font-size:1.15em;font-weight:600", "font-size:.9em;opacity:.7", "margin-top:.3em")
_STYLE = "max-width:60em;white-space:normal;overflow-wrap:break-word"
_ENDS = (".", "!", "?", "…")

# What a diagnosis comes from. The tuning guide has a row for each.
Cause = Literal[
    "",
    # the data keeps up, or the loader costs time without a wait
    "keeps-up",
    "rank",
    "slowed-by-lock",
    "slowed-by-cores",
    "slowed",
    "longer-steps",
    # a full stage that more or fewer calls at once would change
    "more-calls",
    "raise-was-slower",
    "calls-in-turn",
    "tried",
    "most-calls",
    "enough-calls",
    "full-machine",
    # a full stage that must run elsewhere
    "lock",
    "event-loop",
    "many-processes",
    "sending",
    "cluster",
    # a full stage of one call at a time
    "source",
    "batch",
    "inline",
    "own-loop",
    "one-call",
    "copy",
    "device",
    # no stage is full
    "full-memory",
    "memory",
    "slow-calls",
    "bursts",
    "no-core",
    "changing",
    # there is no verdict, or none yet
    "not-started",
    "paused",
    "starting",
    "early",
    "just-turned",
    "autotune",
    "turned-since",
    "short-epoch",
    # something is wrong
    "failed",
    "hangs",
    "empty",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits a run, how that was seen, and what to do.

    Attributes:
        stage: address of the stage that limits; "consumer" is the training loop; None where
            no single stage does.
        text: the finding, in one sentence.
        evidence: how it was seen, in a short phrase; empty where the finding says it all.
        advice: what to do; empty where there is nothing.
        suggestion: stage, knob and value that would carry it out, or None.
        kind: the verdict about the stage: LIMITS; KEEPS_UP, nothing is wrong, the training loop
            sets the pace; SLOWER, a raise of its knob brought less, and the suggestion takes it
            back; SLOWS, workers make the steps of the training loop longer; HANGS, a call of it
            does not end; STARTS, its workers do; FAILED; EMPTY, the
            loop was given nothing, because of this stage.
        cause: what the finding comes from, for example "lock": a row of the tuning guide.
    """

    text: str
    cause: Cause = ""
    stage: str | None = None
    evidence: str = ""
    advice: str = ""
    suggestion: tuple[str, str, int] | None = None
    kind: str = LIMITS

    @property
    def severity(self) -> str:
        """How bad it is: GOOD, INFO, WARNING or ERROR."""
        return WARNING if self.cause == "full-memory" else _SEVERITIES.get(self.kind, INFO)

    @property
    def code(self) -> str:
        """The arguments that the advice would write in the code, as `executor="process"`."""
        words = () if self.suggestion else self.advice.split()
        named = (word.strip(",;:.") for word in words)
        return ", ".join(word for word in named if "=" in word and not word.endswith("="))

    def after(self, state: str) -> Diagnosis:
        """Return the same finding about an epoch that has ended in a state, such as "finished"."""
        return replace(self, text=f"{state.capitalize()}. {self.text}")

    def __str__(self) -> str:
        """Return all in one line: the finding, the evidence in brackets, and the advice."""
        text = self.text
        if self.evidence:
            text = f"{text.removesuffix('.')} ({self.evidence})."
        return f"{text} {self.advice}".rstrip()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return it in lines that wrap between words; colours are those of the page."""
        lines = zip(_STYLES, (self.text, self.evidence, self.advice), strict=True)
        shown = [f'<div style="{style}">{_escaped(one)}</div>' for style, one in lines if one]
        return f'<div style="{_STYLE}">{"".join(shown)}</div>'


def _escaped(text: str) -> str:
    return html.escape(plain(text))


def sentence(text: str) -> str:
    """Return text with a period at its end, unless it ends a sentence already."""
    return text if text.endswith(_ENDS) else f"{text}."


def short_name(address: str) -> str:
    """Return an address for a sentence."""
    return shortened(address, _NAME)
