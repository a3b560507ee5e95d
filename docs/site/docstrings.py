"""Docstrings as the reference shows them: what completion offers, and no more."""

from typing import Any

from docutils.nodes import document
from sphinx.addnodes import desc_signature
from sphinx.application import Sphinx

import nbpipe

_PIPE = nbpipe.source(["1"]).map(int)
with _PIPE.start() as _RUN:
    _OFFERED = {type(one).__name__: {*dir(one)} for one in (_PIPE, _RUN, _PIPE["int"])}
_OFFERED["Stage"].add("depth")  # of stages on a device
_OFFERED["ShownRun"] = _OFFERED["Run"]  # what it has from there
# Nobody but nbpipe makes these: their arguments are no news to anybody.
_GIVEN = {f"nbpipe.{name}" for name in (*_OFFERED, "Knob", "KnobChange", "StageStats", "Failure")}
_GIVEN.add("nbpipe.metrics.MetricsLog")
_LEFT_OUT = {"MissingExtraError.of", "near_match"}


def _skips(_app: Sphinx, _what: str, name: str, one: Any, *_: Any) -> bool | None:
    """Called for each member: True leaves it out, None leaves it to Sphinx."""
    place = getattr(getattr(one, "fget", one), "__qualname__", "")
    offered = _OFFERED.get(place.partition(".")[0])
    hidden = offered is not None and not name.startswith("_") and name not in offered
    return True if hidden or place in _LEFT_OUT else None


def _signature(_app: Sphinx, _what: str, name: str, *_: Any) -> tuple[str, None] | None:
    """Called for each signature: a class that is only given has none."""
    return ("", None) if name in _GIVEN else None


def _trim(_app: Sphinx, _what: str, name: str, _one: Any, _options: Any, lines: list[str]) -> None:
    """Called for each docstring: leave out how it is made, and attributes that are not offered."""
    if name not in _GIVEN:
        return
    offered = _OFFERED.get(name.rpartition(".")[2])
    section, kept, shown = "", [], True
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line and not indent:
            section, shown = line, line not in ("Args:", "Raises:", "Attributes:")
        elif section == "Attributes:" and indent == len("    "):
            shown = offered is None or line.split(":")[0].strip() in offered
            if shown and section not in kept:
                kept.append(section)
        if shown:
            kept.append(line)
    lines[:] = kept


def _forget_source(_app: Sphinx, page: document) -> None:
    """Called for each page: viewcode would take the module of these names for that of others."""
    for signature in page.findall(desc_signature):
        if signature.get("fullname") in {"full_tracebacks", "log_every"}:
            signature["module"] = None


def connect(app: Sphinx) -> None:
    """Have Sphinx ask here."""
    app.connect("doctree-read", _forget_source, priority=400)  # before viewcode looks
    app.connect("autodoc-skip-member", _skips)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _trim, priority=400)  # before napoleon reads it
