"""Inside: what runs in the notebook's kernel after its last cell."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from ..errors import NbpipeError, near_match
from ..pipeline import Pipeline


class ExportReply:
    """What became of a request; a kernel shows it as JSON."""

    def __init__(self, **content: object) -> None:
        self._content = content

    def _repr_json_(self) -> dict[str, object]:
        return self._content


def answer(request: str) -> ExportReply:
    """Export a pipeline from the variables of the kernel that this runs in.

    Args:
        request: JSON: `name` of the variable, `path` of the file, and `options` of `export`.

    Returns:
        `wrote` with what the export says of itself, or `refused` with the reason.
    """
    asked = json.loads(request)
    variables = sys.modules["IPython"].get_ipython().user_ns
    pipe = variables.get(asked["name"])
    if not isinstance(pipe, Pipeline):
        return ExportReply(refused=_no_pipeline(asked["name"], variables))
    try:
        report = pipe.export(asked["path"], **asked["options"])
    except NbpipeError as error:
        return ExportReply(refused=str(error))
    except Exception as error:  # noqa: BLE001  the caller is another process
        words = f"{type(error).__name__}: {error}"
        return ExportReply(refused=words, details="".join(traceback.format_exception(error)))
    return ExportReply(wrote=str(report))


def _no_pipeline(name: str, variables: Mapping[str, Any]) -> str:
    known = [
        key
        for key, value in variables.items()
        if isinstance(value, Pipeline) and not key.startswith("_")
    ]
    is_what = f"there is no such variable{near_match(name, known)}"
    if name in variables:
        is_what = f"it is of type {type(variables[name]).__name__!r}"
    there = "the notebook holds no pipeline in a variable"
    if known:
        there = f"the pipelines are in {', '.join(map(repr, known))}"
    return f"--pipeline must name a pipeline, got {name!r}: {is_what}; {there}"
