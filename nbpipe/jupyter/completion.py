"""Completion of a stage: `pipe["decode"].` offers its knobs first, and nothing that it has not.

IPython's own completion takes the class for the object here, and offers what every stage may have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_STAGE = re.compile(
    r"(?P<name>[^\W\d]\w*)\[(?P<quote>[\"'])(?P<address>.*?)(?P=quote)\]\.(?P<word>\w*)$"
)
_WITH_STAGES = ("nbpipe.pipeline", "nbpipe.run.run", "nbpipe.dataloader.run")


def offer_knobs(shell: Any) -> Callable[[], None]:
    """Add to a shell's completion; return what takes it away again.

    Args:
        shell: IPython's; one before 8.6, and a shell of another kind, completes as it does.
    """
    matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", None)
    if matchers is None:
        return lambda: None
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]
    def stage_matcher(context: Any) -> dict[str, Any]:
        word, names = names_of_stage(context.text_until_cursor, shell.user_ns)
        found = [SimpleCompletion(text=name, type="instance") for name in names]
        return {
            "completions": found,
            "suppress": bool(found),
            "ordered": True,
            "matched_fragment": word,
        }

    matchers.append(stage_matcher)
    return lambda: matchers.remove(stage_matcher)


def names_of_stage(text: str, variables: Any) -> tuple[str, list[str]]:
    """Return the word that a text ends in, and what it may become: the knobs first.

    Args:
        text: the line before the cursor.
        variables: the user's variables by name.
    """
    found = _STAGE.search(text)
    value: Any = None if found is None else variables.get(found["name"])
    if found is None or type(value).__module__ not in _WITH_STAGES:
        return "", []
    try:
        stage = value[found["address"]]
    except LookupError:
        return "", []
    others = sorted(name for name in dir(stage) if name[0] != "_" and name not in stage.knobs)
    return found["word"], [one for one in (*stage.knobs, *others) if one.startswith(found["word"])]
