"""Proof: what is written is tried in a fresh process, and must be what the notebook has."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np

from ..errors import ExportError
from .anew import error_words, has_own_seed
from .chain import chosen_text, rooted
from .collect import Collector, Found, Scope, Use, refusal, unwritable
from .fingerprint import difference, json_fingerprint, loosened
from .fresh import (
    STARTS_S,
    FreshAnswer,
    FreshProcess,
    shared_places,
)
from .module import Import, Line, Module, Piece, Spelling, import_lines, ordered
from .reachable import is_local
from .secrets import advice, scrubbed, secret_in_text, secrets_in_text
from .source import changed_attributes, names_in, read_of, shows_order_of_set

# -- FirstItems: those of the notebook's own pipeline, twice, within a time limit ------------------
_GRACE_S = 5.0
_RUNS = 2  # of the notebook's own pipeline: where they differ, nothing can be compared


@dataclass(frozen=True, slots=True)
class FirstItems:
    """Fingerprints of first items, and what was raised after them, in words; empty for nothing."""

    items: tuple[Any, ...]
    raised: str = ""


def _own_samples(
    items: Callable[[], Iterator[object]], count: int, limit_s: float
) -> list[FirstItems] | str:
    """Run twice for the first items, in a thread; words where that takes longer than the limit."""
    samples: list[FirstItems] = []
    iterators: list[Any] = []
    ended = threading.Event()

    def take() -> None:
        while len(samples) < _RUNS and not ended.is_set():
            samples.append(_sample(items, count, iterators))
        ended.set()

    thread = threading.Thread(target=take, name="nbpipe-export-items", daemon=True)
    in_time = False
    try:
        thread.start()
        in_time = ended.wait(limit_s)
    finally:
        ended.set()
        _close(iterators)  # wakes the thread where it waits for an item
        with contextlib.suppress(RuntimeError):  # an interrupt came before it began
            thread.join(_GRACE_S)
    return samples if in_time else f"not compared: took longer than {limit_s:g} s"


def _sample(items: Callable[[], Iterator[object]], count: int, iterators: list[Any]) -> FirstItems:
    taken: list[Any] = []
    raised = ""
    try:
        iterators.append(iter(items()))
        taken.extend(map(json_fingerprint, islice(iterators[-1], count)))
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        raised = error_words(error)
    finally:
        _close(iterators)
    return FirstItems(tuple(taken), raised)


def _close(iterators: list[Any]) -> None:
    for one in iterators:
        with contextlib.suppress(Exception):  # it is at work in the thread, or fails at its end
            getattr(one, "close", bool)()


# -- Trial: which spelling of each piece is true in a fresh process --------------------------------
_ROUNDS = 4  # processes at most: one for all, and one more after each that a spelling ended


@dataclass(frozen=True, slots=True)
class Choice:
    """A piece that runs.

    Attributes:
        spelling: number of the first spelling that runs and gives what is expected.
        is_data: it reads files, or what was made of files.
    """

    spelling: int
    is_data: bool = False


@dataclass(frozen=True, slots=True)
class NoTrueSpelling:
    """A piece of which no spelling is true.

    Attributes:
        reason: what is wrong with the first: a difference in words, or "ValueError: ...".
        line: the line of that spelling where it was raised; None where none was.
        alive: the first gives something that lives in one process.
        apart: it does not share an object with another variable as it does in the notebook.
    """

    reason: str
    line: int | None = None
    alive: bool = False
    apart: bool = False


def tried(
    imports: str,
    pieces: Sequence[Piece],
    fresh: FreshProcess,
    *,
    name: str,
    future: bool,
    files: Mapping[str, bytes] | None = None,
    settled: Collection[str] = (),
    submodules: Collection[str] = (),
    shared: Sequence[tuple[str, str, list[list[str]]]] = (),
    limit_s: float = 60.0,
) -> tuple[list[Choice | NoTrueSpelling], list[str]]:
    """Run the imports and the pieces of a module in a fresh process.

    Args:
        imports: the import block.
        pieces: in the order in which they will stand in the module.
        fresh: what tries them; relative paths work as they do in the notebook.
        name: name of the module.
        future: it begins with `from __future__ import annotations`.
        files: what lies beside the module, by name.
        settled: names whose value is written rather than read from data again.
        submodules: they are imported where the import block does not do it.
        shared: names of which the module's code changes one, and the places of what they share.
        limit_s: the most that all of it may take once the process runs [s]; where it is over, or
            the process ends, all is tried again without the spelling at fault, if the piece has
            another.

    Returns:
        How each piece went, and the submodules that the import block does not import.

    Raises:
        ExportError: no fresh process can be started, the import block fails in one, or a text
            holds what looks like a secret: the process is given a file.
    """
    refuse_secrets("\n".join([imports, *map(_all_texts, pieces)]), pieces)
    tries = [Piece(names=(), spellings=(Spelling(imports),)), *pieces]
    passed = list(map(_first_stable, tries))
    limits_s = {"": STARTS_S, "pieces": limit_s}
    for _ in range(_ROUNDS):
        given = [
            _as_json(piece, first, settled) for piece, first in zip(tries, passed, strict=True)
        ]
        request = {
            "name": name,
            "future": future,
            "pieces": given,
            "modules": sorted(submodules),
            "shared": list(shared),
        }
        answer = fresh.ask("try_pieces", request, limits_s=limits_s, files=files)
        last = _last_tried(answer)
        if last is None or last[1] + 1 >= len(given[last[0]]["spellings"]):
            break
        passed[last[0]] += last[1] + 1  # again without what ended the process or took too long
    results = _results(answer, ["the import block", *map(_called, pieces)], passed)
    if isinstance(results[0], NoTrueSpelling):
        raise ExportError(_import_words(imports, results[0]))
    return results[1:], [line["lacks"] for line in answer.lines if "lacks" in line]


def _first_stable(piece: Piece) -> int:
    """Count the first spellings that give another order in each process, if another follows.

    No trial can tell: of two labels, every second process has them in the same order.
    """
    shows = [shows_order_of_set(spelling.text) for spelling in piece.spellings]
    return shows.index(False) if False in shows and not has_own_seed() else 0


def _last_tried(answer: FreshAnswer) -> tuple[int, int] | None:
    """Return the piece and the spelling that ended the process; None where none did."""
    places = [(line["at"], line["spelling"]) for line in answer.lines if "at" in line]
    return places[-1] if places and answer.ending != "answered" else None


def refuse_secrets(text: str, pieces: Sequence[Piece]) -> None:
    """Refuse a text with a secret in it, which may show only beside the function that a call calls.

    Args:
        text: of a module, or of what one is made of.
        pieces: what it is made of, by which the secret's place is told.

    Raises:
        ExportError: it holds one.
    """
    if not secret_in_text(text):
        return
    texts = list(map(_all_texts, pieces))
    alone = (number for number, one in enumerate(texts) if secret_in_text(one))
    apart = (  # a call stands below its function
        number
        for number in reversed(range(len(texts)))
        if not secret_in_text("\n".join([*texts[:number], *texts[number + 1 :]]))
    )
    found = next(alone, next(apart, None))
    names = [name for name, _ in secrets_in_text(text) if name]
    culprit = "the module" if found is None else _called(pieces[found])
    raise ExportError(f"{culprit} {advice(names[0] if names else '')}")


def _all_texts(piece: Piece) -> str:
    return "\n".join(spelling.text for spelling in piece.spellings)


def _import_words(imports: str, failure: NoTrueSpelling) -> str:
    lines = imports.split("\n")
    number = failure.line
    line = lines[number - 1].strip() if number is not None and number <= len(lines) else ""
    culprit = f"`{line}`" if line else "the import block of the module"
    return (
        f"{culprit} fails in a fresh process: {failure.reason}\n"
        "  a module must be installed, or lie in the working folder or in a folder of sys.path"
    )


def _as_json(piece: Piece, first: int, settled: Collection[str]) -> dict[str, Any]:
    return {
        "settled": not set(settled).isdisjoint(piece.names),
        "names": piece.names,
        "expected": piece.expected,
        "closed": piece.kind != "setup",  # a set-up cell may open what it likes
        "spellings": [
            {"text": spelling.text, "now": sorted(spelling.now)}
            for spelling in piece.spellings[first:]
        ],
    }


def _called(piece: Piece) -> str:
    return piece.words or " and ".join(map(repr, piece.names))


def _results(
    answer: FreshAnswer, called: list[str], passed: list[int]
) -> list[Choice | NoTrueSpelling]:
    """Read how the pieces went; after the one that ended the process none was tried."""
    lines = [line for line in answer.lines if line.keys() & {"choice", "failed"}]
    results = [
        NoTrueSpelling(**line["failed"])
        if "failed" in line
        else Choice(line["choice"] + first, line.get("data", False))
        for line, first in zip(lines, passed, strict=False)
    ]
    if len(results) < len(called):
        culprit = called[len(results)]
        results.append(NoTrueSpelling(answer.words))
        rest = NoTrueSpelling(f"was not tried: {culprit} {answer.words}")
        results += [rest] * (len(called) - len(results))
    return results


# -- Decide: the trial's choices become one way to write each piece, and what nothing uses goes ----
def decided(collector: Collector, draft: Module, fresh: FreshProcess, name: str) -> Module:
    """Try all ways to write the pieces in a fresh process, and take the first that is true.

    Args:
        collector: what was collected.
        draft: what uses it.
        fresh: what tries them.
        name: name of the module.

    Returns:
        The module with the pieces and the imports that something in it uses.

    Raises:
        ExportError: a value is not what any way to write it gives.
    """
    found = collector.found
    reads = _read_by_name(found, draft)
    pieces = {
        piece.names[0]: _without_state(_settled(piece, found), found, reads)
        for piece in found.pieces.values()
    }
    every = [*pieces.values(), *found.checks.values()]
    results = _tried(every, draft, collector, fresh, name)
    texts: dict[str, str] = {}
    data: set[str] = set()
    failures: dict[str, tuple[Piece, NoTrueSpelling]] = {}
    for piece, result in results:
        name = piece.names[0]
        if isinstance(result, NoTrueSpelling):
            failures[name] = (piece, result)
            continue
        spelling = piece.spellings[result.spelling]
        data |= set(piece.names) if result.is_data else set()
        if name in pieces:
            pieces[name] = replace(piece, spellings=(spelling,))
        else:
            texts[name] = chosen_text(spelling)
    whole = _used(draft.changed(texts), found, list(pieces.values()))
    needed = {piece.names[0] for piece in whole.pieces} | found.checks.keys()
    for name, (_, error) in found.alive.items():
        if name in needed:
            raise error
    for name, (piece, failure) in failures.items():
        if name in needed:
            raise _failure(found, piece, failure)
    return _without_work(whole, data, found, collector.scopes[0])


def _submodules(found: Found, draft: Module) -> set[str]:
    """Return the submodules that code reads of a package, and that nobody imports by name.

    In the notebook something else may have imported `PIL.Image`, for `import PIL` to be enough.
    """
    known = {line.module for line in found.imports}
    whole = {line.module for line in found.imports if line.member is None and line.alias is None}
    pieces = (*found.pieces.values(), *found.checks.values())
    trees = [ast.parse(way.text) for piece in pieces for way in piece.spellings]
    trees += [line.tree for line in draft.body]
    nodes = (one for tree in trees for one in ast.walk(tree))
    paths = {ast.unparse(one) for one in nodes if isinstance(one, ast.Attribute)}
    return {one for one in paths & sys.modules.keys() - known if one.partition(".")[0] in whole}


def _settled_names(found: Found, draft: Module) -> frozenset[str]:
    """Return the variables that functions and stages read: those that only sources do are none."""
    reading = [piece for piece in found.pieces.values() if piece.kind == "definition"]
    names = {name for one in reading for way in one.spellings for name in (*way.now, *way.later)}
    for line in draft.body:
        names |= names_in(line.tree) - found.listed
    for mark, piece in found.checks.items():
        if mark not in found.listed:
            names |= {name for way in piece.spellings for name in way.now}
    return frozenset(names)


def _without_work(module: Module, data: set[str], found: Found, scope: Scope) -> Module:
    """Have `build_pipeline` do what reads data, so that the module may be imported anywhere.

    Args:
        module: all that is needed.
        data: variables that are read from files, or made of such.
        found: takes notes of what functions read, and so must stay.
        scope: the notebook.
    """
    apart = [piece for piece in module.pieces if not data.isdisjoint(piece.names)]
    while True:
        rest = [piece for piece in module.pieces if piece not in apart]
        read = {name for piece in rest for name in (*piece.now, *piece.later)}
        kept = [piece for piece in apart if read.isdisjoint(piece.names)]
        if len(kept) == len(apart):
            break
        apart = kept
    for piece in rest:
        if piece.kind == "constant" and not data.isdisjoint(piece.names):
            found.notes[
                f"{piece.words} reads data whenever the module is imported; to have it elsewhere, "
                "give it to the function that uses it, as by partial, or save its value and load "
                "it in a function under @functools.cache"
            ] = None
    lines = [Line(piece.text, is_code=True) for piece in ordered(apart)]
    return rooted(replace(module, pieces=tuple(rest), body=(*lines, *module.body)), scope, found)


def _settled(piece: Piece, found: Found) -> Piece:
    """Let what the exported code changes begin with its first value."""
    names = [name for name in piece.names if name in found.changed]
    for name in names:
        _refuse_unnamed(name, found)
        if piece.kind != "setup":
            found.alive.pop(name, None)  # it begins without what it holds by now
    if piece.kind == "definition" and not names:
        # What a base class changes in itself shows in the classes made from it.
        touched = not piece.now.isdisjoint(found.changed)
        return replace(piece, expected={}) if touched else piece
    if piece.kind == "setup" or not names:
        return piece
    for name in names:
        _note_first_value(piece, name, f"is changed by {found.changed[name]}", found)
    expected = {name: one for name, one in piece.expected.items() if name not in names}
    return replace(piece, spellings=piece.spellings[:1], expected=expected)


def _note_first_value(piece: Piece, name: str, words: str, found: Found) -> None:
    """Note that a variable begins anew, and what makes the notebook do so, too."""
    note = f"{name!r} {words}; in the module it begins with its first value"
    cell = re.search(r"In\[\d+\]", piece.words)
    found.notes[note] = note if cell is None else f"{note}; run {cell[0]} again, then export"


def _refuse_unnamed(name: str, found: Found, attributes: Iterable[str] = ()) -> None:
    """Refuse a registry that begins anew, where nothing in the module fills it again.

    Args:
        name: of the registry.
        found: what was collected.
        attributes: those that begin anew; all where there are none.

    Raises:
        ExportError: it holds a function without a name.
    """
    place, use = found.unnamed.get(name, ("", None))
    ours = not attributes or any(re.match(rf"\.{one}\b", place) for one in attributes)
    if use is not None and ours:
        raise refusal(
            f"{name}{place} holds a function that has no name by now, so the module would not put "
            "it there; give each function a name of its own, by def",
            use,
        )


def _read_by_name(found: Found, draft: Module) -> dict[str, frozenset[str]]:
    """Return by each name the attributes that the functions and the chain read of it."""
    texts = [piece.text for piece in found.pieces.values() if piece.kind == "definition"]
    texts += [way.text for piece in found.checks.values() for way in piece.spellings]
    return read_of([*map(ast.parse, texts), *(line.tree for line in draft.body)])


def _without_state(piece: Piece, found: Found, reads: dict[str, frozenset[str]]) -> Piece:
    """Let objects begin with the first value of what the pipeline itself changes in them."""
    expected = dict(piece.expected)
    for name in piece.expected.keys() & found.held.keys():
        held = found.held[name]
        changed: frozenset[str] = frozenset()
        for kind in found.classes.keys() & set(held.kinds):
            node = found.classes[kind]
            if isinstance(node, ast.ClassDef):
                called = reads.get(name, frozenset())
                changed |= changed_attributes(node, called, held.moving) & held.attributes
        if changed:
            _refuse_unnamed(name, found, changed)
            if found.alive.get(name, ("",))[0] in changed:
                del found.alive[name]
            expected[name] = loosened(expected[name], [f"attribute {one!r}" for one in changed])
            _note_first_value(piece, name, f"keeps state in {', '.join(sorted(changed))}", found)
    return replace(piece, expected=expected)


def _shared(pieces: list[Piece], found: Found) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Return what variables share, of which the pipeline changes one in place."""
    constants = [piece for piece in pieces if piece.kind == "constant"]
    owners = {name: found.owners.get(name) for piece in constants for name in piece.names}
    values = {
        name: one[name]
        for name, one in owners.items()
        if one is not None and name in one and name not in one.rebound
    }
    states = {name for piece in constants for name, one in piece.expected.items() if "loose" in one}
    changed = [name for name in values if name in found.changed or name in states]
    for at, one in enumerate(changed):
        for other, value in values.items():
            if other not in changed[: at + 1]:
                yield one, other, shared_places(values[one], value)


# -- the trial -------------------------------------------------------------------------------------
def _tried(
    pieces: list[Piece], draft: Module, collector: Collector, fresh: FreshProcess, name: str
) -> list[tuple[Piece, Choice | NoTrueSpelling]]:
    found = collector.found
    every = ordered(pieces)
    results, lacks = tried(
        import_lines(found.imports, future=found.future),
        every,
        fresh,
        name=name,
        future=found.future,
        files={str(collector.archive): archive_bytes(found.arrays)} if found.arrays else {},
        settled=_settled_names(found, draft),
        submodules=_submodules(found, draft),
        shared=list(_shared(pieces, found)),
    )
    for path in lacks:
        if not any(one.startswith(f"{path}.") for one in lacks):
            found.imports[Import(path, None, None, is_local(path))] = None
    return list(zip(every, results, strict=True))


def archive_bytes(arrays: dict[str, object]) -> bytes:
    """Return arrays as a file that `numpy.load` reads; equal arrays give equal bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:  # `numpy.savez` would write the time into it
        for name in sorted(arrays):
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(arrays[name]), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())
    return sink.getvalue()


def _failure(found: Found, piece: Piece, failure: NoTrueSpelling) -> Exception:
    name = piece.names[0]
    use = found.uses.get(name, Use("the pipeline"))
    reason = found.reasons.get(name)
    if failure.alive:
        return refusal(f"{piece.words} makes it anew, but {failure.reason}", use)
    if piece.kind == "constant" and reason is not None:
        return unwritable(piece.words, reason, use)
    if failure.line is not None:
        return refusal(f"{piece.words} fails in a fresh process: {failure.reason}", use)
    if failure.apart:
        return refusal(
            f"{piece.words} cannot be written: {failure.reason}, and the pipeline changes it; bind "
            "that object to a name of its own, in the cell that makes both of it",
            use,
        )
    what, way_out = "is not what its text gives by now", "re-run its cell and rebuild the pipeline"
    if piece.words.startswith("class "):
        what, way_out = "was changed after that", f"write the change into the class, {way_out}"
    elif piece.kind != "definition":
        way_out = f"it was changed after that: make it in one statement, as {name} = make_{name}()"
    return refusal(f"{piece.words} {what}: {failure.reason}; {way_out}, then export", use)


# -- what is used ----------------------------------------------------------------------------------
def _used(draft: Module, found: Found, pieces: list[Piece]) -> Module:
    """Leave out what nothing uses: an assignment needs what the literal in its place does not."""
    read = {name for line in draft.body for name in names_in(line.tree)}
    parameters = [one for one in draft.parameters if not one.positional or one.name in read]
    draft = replace(draft, parameters=tuple(parameters))
    own = (text for one in draft.parameters for text in (one.annotation, one.default))
    wanted = {name for text in own for name in names_in(text)} | read
    kept: dict[str, Piece] = {}
    rest = list(pieces)
    while True:
        more = [one for one in rest if one.kind == "setup" or not wanted.isdisjoint(one.names)]
        if not more:
            break
        for piece in more:
            kept[piece.names[0]] = piece
            wanted |= piece.now | piece.later
        rest = [one for one in rest if one.names[0] not in kept]
    texts = [line.text for line in draft.body] + [piece.text for piece in kept.values()]
    text = "\n".join([*texts, *(one.default for one in draft.parameters)])
    imports = [line for line in found.imports if line.binds in wanted and _is_meant(line, text)]
    bound = {name for piece in kept.values() for name in piece.names}
    imports = [line for line in imports if line.binds not in bound]
    return replace(draft, imports=tuple(imports), pieces=tuple(kept.values()), future=found.future)


def _is_meant(line: Import, text: str) -> bool:
    """Tell whether `import a.b` is meant by what reads `a`, and not another module in it."""
    dotted = line.member is None and line.alias is None and "." in line.module
    return not dotted or line.module in text


# -- Verify: a written module is imported elsewhere, and must be what the notebook has -------------
_ANEW = "when its text runs anew"  # what `difference` calls the other side
_GRAPH = ("name", "op", "executor", "knobs")


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared.

    Attributes:
        compared: items that were equal [items].
        reason: why items could not be compared; empty where they could, or were not to be.
    """

    compared: int
    reason: str = ""


def verified(
    text: str,
    filename: str,
    fresh: FreshProcess,
    *,
    reads: Mapping[str, Use] | None = None,
    expected: Mapping[str, Any] | None = None,
    expected_graph: Sequence[Mapping[str, Any]] | None = None,
    expected_specs: Sequence[tuple[str, Any]] = (),
    process_stages: Sequence[str] = (),
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
        fresh: what imports it.
        reads: names that nothing in the module binds, by who reads them.
        expected: fingerprints of names of the module.
        expected_graph: `Pipeline.graph()` of the notebook's pipeline.
        expected_specs: its `specs_of`; empty compares none.
        process_stages: addresses of the stages whose functions plain pickle must take.
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
        "specs": bool(expected_specs),
        "process_stages": list(process_stages),
        "check_items": count,
    }
    limits_s = {"": start_limit_s, "items": limit_s}
    answer = fresh.ask("inspect", request, limits_s=limits_s, files=every)
    _check_names(answer, reads or {})
    _check_start(answer, filename)
    _check_graph(answer, expected_graph)
    _check_specs(answer, expected_specs)
    if items is None or count == 0:
        return Report(0)
    if answer.ending == "late":  # the notebook's own need not be waited for
        return Report(0, f"not compared: took longer than {limit_s:g} s")
    return _compared(answer, _own_samples(items, count, limit_s), hint)


def _found(answer: FreshAnswer, key: str) -> list[dict[str, Any]]:
    return [line for line in answer.lines if key in line]


def _check_names(answer: FreshAnswer, reads: Mapping[str, Use]) -> None:
    """Refuse a module that reads what a fresh process does not have."""
    for line in _found(answer, "unknown"):
        name = line["unknown"][0]
        raise refusal(
            f"{name!r} is not defined in the module; define it at the top of a cell, import it, or "
            "take it out",
            reads[name],
        )


def _check_start(answer: FreshAnswer, filename: str) -> None:
    """Refuse a module that cannot be imported, has other values, or builds no pipeline."""
    failed = [line for line in _found(answer, "failed") if "stage" not in line]
    if failed:
        line, text, words = failed[0]["line"], failed[0]["text"], failed[0]["failed"]
        at = f", line {line}: `{scrubbed(text)}`" if line is not None else ""
        raise ExportError(f"the module would fail in a fresh process: {filename}{at}: {words}")
    for line in _found(answer, "differs"):
        raise ExportError(f"the module differs from the notebook: {_in_module(line['differs'])}")
    if not _found(answer, "step") and answer.ending != "answered":
        raise ExportError(f"the module was checked in a fresh process, and {answer.words}")


def _check_graph(answer: FreshAnswer, expected: Sequence[Mapping[str, Any]] | None) -> None:
    graphs = (expected, _found(answer, "graph")[0]["graph"]) if expected is not None else ((), ())
    rows = ([{key: one[key] for key in _GRAPH} for one in graph] for graph in graphs)
    words = difference(*map(json_fingerprint, rows))
    if words is not None:
        culprit = "the module builds another pipeline than the notebook's"
        raise ExportError(f"{culprit}: {_in_module(words)}")
    for line in _found(answer, "stage"):
        raise ExportError(
            f"stage {line['stage']!r} runs in other processes, and they could not be sent its "
            f"function: {line['failed']}; define what it uses at the top of a cell, with def "
            "or class"
        )


def _check_specs(answer: FreshAnswer, expected: Sequence[tuple[str, Any]]) -> None:
    """Refuse stages that were given something else than the notebook's."""
    found = _found(answer, "specs")[0]["specs"] if expected else ()
    for (address, ours), (_, theirs) in zip(expected, found, strict=False):
        words = difference(ours, theirs)
        if words is not None:
            raise ExportError(f"stage {address!r} differs in the module: {_in_module(words)}")


def _in_module(words: str) -> str:
    return words.replace(_ANEW, "in the module")


def _compared(answer: FreshAnswer, own: list[FirstItems] | str, hint: str) -> Report:
    """Compare items, where the notebook's own runs agree."""
    if isinstance(own, str):
        return Report(0, own)
    first, second = own
    raised = [line["raised"] for line in _found(answer, "raised")]
    if answer.ending == "died":
        raised.append(answer.words)
    fingerprints = tuple(line["item"] for line in _found(answer, "item"))
    module = FirstItems(fingerprints, raised[0] if raised else "")
    if first == second:
        words = _mismatch(first, module)
    else:  # what only the module raises is its own fault all the same
        words = None if first.raised or second.raised else _error_in(module)
    if words is not None:
        raise ExportError(scrubbed(words) + (f"; {hint}" if hint else ""))
    if first != second:
        return Report(0, "not comparable: two runs of the notebook's own pipeline differ")
    raises = f"not compared: the notebook's own pipeline raises {first.raised}"
    return Report(len(first.items), raises if first.raised else "")


def _error_in(module: FirstItems) -> str | None:
    """Tell which item cannot be made; None where all were."""
    number = len(module.items)
    return f"item {number} of the module cannot be made: {module.raised}" if module.raised else None


def _mismatch(notebook: FirstItems, module: FirstItems) -> str | None:
    """Tell which item differs first; None where none does."""
    for number, (ours, theirs) in enumerate(zip(notebook.items, module.items, strict=False)):
        words = difference(ours, theirs)
        if words is not None:
            words = _in_module(words)
            return f"item {number} of the module differs from the notebook's: {words}"
    here, there = len(notebook.items), len(module.items)
    if notebook.raised:
        return None
    if here != there and not module.raised:
        return f"the module gives {there} items where the notebook's pipeline gives {here}"
    return _error_in(module)
