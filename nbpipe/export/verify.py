"""Verify: a written module is imported elsewhere, and must be what the notebook has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from ..errors import ExportError
from .fresh import STARTS_S, Answer, Surroundings, ask
from .portrait import difference
from .sample import Sample, own_samples
from .secrets import scrubbed
from .uses import Use, refusal

_SEED = 2  # the trial was made under others
_ANEW = "when its text runs anew"  # what `difference` calls the other side
_GRAPH = ("op", "executor", "knobs")


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared.

    Attributes:
        compared: items that were equal [items].
        comparable: items could be compared, or were not to be.
        reason: why they could not; empty where they could.
        reads_files: importing the module reads files of the working folder.
    """

    compared: int
    comparable: bool = True
    reason: str = ""
    reads_files: bool = False


def verified(
    text: str,
    filename: str,
    where: Surroundings,
    *,
    reads: Mapping[str, Use] | None = None,
    expected: Mapping[str, Any] | None = None,
    expected_graph: Sequence[Mapping[str, Any]] | None = None,
    process_stages: Sequence[str] = (),
    spawn_check: bool = True,
    items: Callable[[], Iterator[object]] | None = None,
    check_items: int = 4,
    limit_s: float = 30.0,
    start_limit_s: float = STARTS_S,
    files: Mapping[str, bytes] | None = None,
    hint: str = "",
) -> Report:
    """Import a module in a fresh process, from another folder, and compare it with the notebook.

    Args:
        text: the module.
        filename: its name, as "loader.py".
        where: the notebook's folder and import path.
        reads: names that nothing in the module binds, by who reads them.
        expected: portraits of names of the module.
        expected_graph: `Pipeline.graph()` of the notebook's pipeline.
        process_stages: addresses of the stages whose functions plain pickle must take.
        spawn_check: what was pickled is loaded in yet another process.
        items: gives a new iterator of the notebook's own items; None compares none.
        check_items: first items to compare [items].
        limit_s: the most that the items of each side may take [s].
        start_limit_s: the most that the module may take until its pipeline is built [s].
        files: what lies beside the module, by name.
        hint: what a difference may come from, for the end of its message.

    Raises:
        ExportError: the module cannot be imported, a name in it is not defined, its pipeline is
            another, a function of a process stage cannot be sent, or an item differs.
    """
    every = {**(files or {}), filename: text.encode("utf-8")}
    count = check_items if items is not None else 0
    request = {
        "name": PurePath(filename).stem,
        "reads": sorted(reads or {}),
        "expected": dict(expected or {}),
        "process_stages": list(process_stages),
        "check_items": count,
    }
    limits_s = {"": start_limit_s, "items": limit_s}
    answer = ask("inspect", request, where, limits_s=limits_s, files=every, seed=_SEED)
    _check_names(answer, reads or {})
    _check_start(answer, filename)
    _check_graph(answer, expected_graph)
    _check_pickles(answer, every, filename, where, start_limit_s, load=spawn_check)
    reads_files = bool(_found(answer, "reads"))
    if items is None or count == 0:
        return Report(0, reads_files=reads_files)
    if answer.ending == "late":  # the notebook's own need not be waited for
        return Report(0, False, f"not compared: took longer than {limit_s:g} s", reads_files)  # noqa: FBT003
    report = _compared(answer, own_samples(items, count, limit_s), hint)
    return replace(report, reads_files=reads_files)


def _found(answer: Answer, key: str) -> list[dict[str, Any]]:
    return [line for line in answer.lines if key in line]


def _check_names(answer: Answer, reads: Mapping[str, Use]) -> None:
    """Refuse a module that reads what a fresh process does not have."""
    for line in _found(answer, "unknown"):
        name = line["unknown"][0]
        raise refusal(
            f"{name!r} is not defined in the module; define it at the top of a cell, import it, or "
            "take it out",
            reads[name],
        )


def _check_start(answer: Answer, filename: str) -> None:
    """Refuse a module that cannot be imported, has other values, or builds no pipeline."""
    failed = [line for line in _found(answer, "failed") if "stage" not in line]
    if failed:
        line, text, words = failed[0]["line"], failed[0]["text"], failed[0]["failed"]
        at = f", line {line}: `{scrubbed(text)}`" if line is not None else ""
        raise ExportError(f"the module would fail in a fresh process: {filename}{at}: {words}")
    for line in _found(answer, "differs"):
        raise ExportError(f"the module differs from the notebook: {_in_module(line['differs'])}")
    if not _found(answer, "step") and answer.ending != "answered":
        raise ExportError(f"the module was checked in a fresh process, and {answer.explained()}")


def _check_graph(answer: Answer, expected: Sequence[Mapping[str, Any]] | None) -> None:
    if expected is None:
        return
    words = _graph_difference(expected, _found(answer, "graph")[0]["graph"])
    if words is not None:
        raise ExportError(f"the module builds another pipeline than the notebook's: {words}")


def _in_module(words: str) -> str:
    return words.replace(_ANEW, "in the module")


def _graph_difference(
    notebook: Sequence[Mapping[str, Any]], module: Sequence[Mapping[str, Any]]
) -> str | None:
    """Say where two pipelines differ: names first, then what the stages are."""
    names = [[stage["name"] for stage in graph] for graph in (notebook, module)]
    if names[0] != names[1]:
        words = [", ".join(map(repr, listed)) for listed in names]
        return f"its stages are {words[1]}, in the notebook {words[0]}"
    for ours, theirs in zip(notebook, module, strict=True):
        for key in _GRAPH:
            if ours[key] != theirs[key]:
                what = f"{ours['name']!r} has {_words(key, theirs[key])}"
                return f"stage {what}, in the notebook {_words(key, ours[key])}"
    return None


def _words(key: str, value: Any) -> str:
    if key != "knobs":
        return f"{'operation' if key == 'op' else key} {value!r}"
    return ", ".join(f"{name} {knob}" for name, knob in value.items()) or "no knobs"


def _check_pickles(
    answer: Answer,
    every: Mapping[str, bytes],
    filename: str,
    where: Surroundings,
    limit_s: float,
    *,
    load: bool,
) -> None:
    lines = _found(answer, "stage")
    pickles = [(line["stage"], line["pickle"]) for line in lines if "pickle" in line]
    if pickles and load:
        request = {"name": PurePath(filename).stem, "pickles": pickles}
        there = ask("unpickle", request, where, limits_s={"": limit_s}, files=every)
        lines += _found(there, "failed")
        if there.ending != "answered":
            raise ExportError(f"a process that loads the stages' functions {there.explained()}")
    for line in lines:
        if "failed" in line:
            raise ExportError(
                f"stage {line['stage']!r} runs in other processes, and they could not be sent its "
                f"function: {line['failed']}; define what it uses at the top of a cell, with def "
                "or class"
            )


def _compared(answer: Answer, own: list[Sample] | str, hint: str) -> Report:
    """Compare items, where the notebook's own runs agree."""
    if isinstance(own, str):
        return Report(0, comparable=False, reason=own)
    first, second = own
    if first != second:
        reason = "not comparable: two runs of the notebook's own pipeline differ"
        return Report(0, comparable=False, reason=reason)
    raised = [line["raised"] for line in _found(answer, "raised")]
    if answer.ending == "died":
        raised.append(answer.explained())
    portraits = tuple(line["item"] for line in _found(answer, "item"))
    module = Sample(portraits, raised[0] if raised else "")
    words = _mismatch(first, module)
    if words is not None:
        raise ExportError(scrubbed(words) + (f"; {hint}" if hint else ""))
    if first.raised:
        reason = f"not compared: the notebook's own pipeline raises {first.raised}"
        return Report(len(first.items), comparable=False, reason=reason)
    return Report(len(first.items))


def _mismatch(notebook: Sample, module: Sample) -> str | None:
    """Say which item differs first; None where none does."""
    for number, (ours, theirs) in enumerate(zip(notebook.items, module.items, strict=False)):
        words = difference(ours, theirs)
        if words is not None:
            words = _in_module(words)
            return f"item {number} of the module differs from the notebook's: {words}"
    here, there = len(notebook.items), len(module.items)
    if module.raised and not notebook.raised:
        return f"item {there} of the module cannot be made: {module.raised}"
    if here != there and not notebook.raised:
        return f"the module gives {there} items where the notebook's pipeline gives {here}"
    return None
