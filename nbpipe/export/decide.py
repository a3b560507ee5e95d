"""Decide: the trial's choices become one way to write each piece, and what nothing uses goes."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .collect import Collector, Found
from .fresh import Surroundings, temporary_folder
from .imports import import_block
from .items import chosen_text
from .model import Chain, Import, Module, Parameter, Piece, Step
from .nodes import loosened
from .order import ordered
from .stages import Draft
from .state import changed_attributes, read_of
from .trial import Choice, Failure, tried
from .uses import Use, refusal


class Decided(NamedTuple):
    """What a module holds.

    Attributes:
        draft: what `build_pipeline` is made of.
        imports: those that something uses.
        pieces: those that something uses, with one spelling each.
    """

    draft: Draft
    imports: tuple[Import, ...]
    pieces: tuple[Piece, ...]


def decided(collector: Collector, draft: Draft, where: Surroundings, name: str) -> Decided:
    """Try all ways to write the pieces in a fresh process, and take the first that is true.

    Args:
        collector: what was collected.
        draft: what uses it.
        where: where the notebook runs.
        name: name of the module.

    Raises:
        ExportError: a value is not what any way to write it gives.
    """
    found = collector.found
    reads = _read_by_name(found, draft)
    pieces = {
        piece.names[0]: _without_state(_settled(piece, found), found, reads)
        for piece in found.pieces.values()
    }
    results = _tried([*pieces.values(), *found.checks.values()], collector, where, name)
    texts: dict[str, str] = {}
    failures: dict[str, tuple[Piece, Failure]] = {}
    for piece, result in results:
        name = piece.names[0]
        if isinstance(result, Failure):
            failures[name] = (piece, result)
            continue
        spelling = piece.spellings[result.spelling]
        if name in pieces:
            pieces[name] = replace(piece, spellings=(spelling,))
        else:
            texts[name] = chosen_text(spelling)
    whole = _used(_filled(draft, texts), found, list(pieces.values()))
    needed = {piece.names[0] for piece in whole.pieces} | found.checks.keys()
    for name, (_, error) in found.alive.items():
        if name in needed:
            raise error
    for name, (piece, failure) in failures.items():
        if name in needed:
            raise _failure(found, piece, failure)
    return whole


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
        found.notes[
            f"{name!r} is changed by {found.changed[name]}; in the module it begins with its first "
            "value"
        ] = None
    return replace(piece, spellings=piece.spellings[:1], expected={})


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


def _read_by_name(found: Found, draft: Draft) -> dict[str, frozenset[str]]:
    """Give by each name the attributes that the functions and the chain read of it."""
    texts = [piece.text for piece in found.pieces.values() if piece.kind == "definition"]
    texts += [f"f({text}\n)" for text in _chains_texts(draft)]
    texts += [way.text for piece in found.checks.values() for way in piece.spellings]
    return read_of(map(ast.parse, texts))


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
            found.notes[
                f"{name!r} keeps state in {', '.join(sorted(changed))}; in the module it begins "
                "with its first value"
            ] = None
    return replace(piece, expected=expected)


# -- the trial ----------------------------------------------------------------------------
def _tried(
    pieces: list[Piece], collector: Collector, where: Surroundings, name: str
) -> list[tuple[Piece, Choice | Failure]]:
    found = collector.found
    every = ordered(pieces)
    with _archived(found) as path:
        results = tried(
            import_block(found.imports, future=found.future),
            [_from(piece, collector.archive, path) for piece in every],
            where,
            name=name,
            future=found.future,
        )
    pairs = list(zip(every, results, strict=True))
    # What only needs something that failed is not to blame.
    pairs.sort(key=lambda pair: isinstance(pair[1], Failure) and pair[1].reason[:6] == "needs ")
    return pairs


@contextlib.contextmanager
def _archived(found: Found) -> Iterator[str]:
    """Save the large arrays for the trial."""
    if not found.arrays:
        yield ""
        return
    with temporary_folder() as folder:
        path = Path(folder, "arrays.npz")
        path.write_bytes(archive_bytes(found.arrays))
        yield str(path)


def archive_bytes(arrays: dict[str, object]) -> bytes:
    """Give arrays as a file that `numpy.load` reads; equal arrays give equal bytes."""
    import io
    import zipfile

    import numpy as np

    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:  # `numpy.savez` would write the time into it
        for name in sorted(arrays):
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(arrays[name]), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())
    return sink.getvalue()


def _from(piece: Piece, archive: str | None, path: str) -> Piece:
    """Have a piece load its array from where it lies during the trial."""
    if archive is None:
        return piece
    place = f'Path(__file__).with_name("{archive}")'
    spellings = (replace(one, text=one.text.replace(place, repr(path))) for one in piece.spellings)
    return replace(piece, spellings=tuple(spellings))


def _failure(found: Found, piece: Piece, failure: Failure) -> Exception:
    name = piece.names[0]
    use = found.uses.get(name, Use("the pipeline"))
    reason = found.reasons.get(name)
    if failure.is_alive:
        return refusal(f"{piece.words} makes it anew, but {failure.reason}", use)
    if piece.kind == "constant" and reason is not None:
        return refusal(f"cannot write {piece.words} into the module: {reason}", use)
    if piece.words.startswith("class ") and failure.error_line is None:
        return refusal(
            f"{piece.words} was changed after that: {failure.reason}; write the change into the "
            "class, re-run its cell and rebuild the pipeline, then export",
            use,
        )
    if piece.kind == "definition" and failure.error_line is None:
        return refusal(
            f"{piece.words} is not what its text gives by now: {failure.reason}; re-run its cell "
            "and rebuild the pipeline, then export",
            use,
        )
    if failure.error_line is None:
        return refusal(
            f"{piece.words} is not what its text gives by now: {failure.reason}; it was changed "
            f"after that: make it in one statement, as {name} = make_{name}(), then export",
            use,
        )
    return refusal(f"{piece.words} fails in a fresh process: {failure.reason}", use)


# -- what is used -------------------------------------------------------------------------
def _filled(draft: Draft, texts: dict[str, str]) -> Draft:
    """Put the expressions that were chosen into the draft."""
    return draft._replace(
        locals=tuple((name, _filled_chain(chain, texts)) for name, chain in draft.locals),
        chain=_filled_chain(draft.chain, texts),
    )


def _filled_chain(chain: Chain, texts: dict[str, str]) -> Chain:
    return replace(
        chain,
        inputs=tuple(_filled_chain(one, texts) for one in chain.inputs),
        arguments=tuple(texts.get(text, text) for text in chain.arguments),
        steps=_filled_steps(chain.steps, texts),
    )


def _filled_steps(steps: tuple[Step, ...], texts: dict[str, str]) -> tuple[Step, ...]:
    return tuple(
        replace(
            step,
            arguments=tuple(texts.get(text, text) for text in step.arguments),
            branches=tuple((value, _filled_steps(inner, texts)) for value, inner in step.branches),
        )
        for step in steps
    )


def _used(draft: Draft, found: Found, pieces: list[Piece]) -> Decided:
    """Leave out what nothing uses: an assignment needs what the literal in its place does not."""
    read = {name for text in _chains_texts(draft) for name in _names(text)}
    parameters = [one for one in draft.parameters if not one.positional or one.name in read]
    draft = draft._replace(parameters=tuple(parameters))
    wanted = {name for text in _texts(draft) for name in _names(text)}
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
    text = "\n".join([*_texts(draft), *(piece.text for piece in kept.values())])
    imports = [line for line in found.imports if line.binds in wanted and _is_meant(line, text)]
    bound = {name for piece in kept.values() for name in piece.names}
    return Decided(
        draft, tuple(line for line in imports if line.binds not in bound), tuple(kept.values())
    )


def _is_meant(line: Import, text: str) -> bool:
    """Say whether `import a.b` is meant by what reads `a`, and not another module in it."""
    dotted = line.member is None and line.alias is None and "." in line.module
    return not dotted or line.module in text


def _texts(draft: Draft) -> Iterator[str]:
    """Give all expressions of `build_pipeline`."""
    for parameter in draft.parameters:
        yield from (parameter.annotation, parameter.default)
    yield from _chains_texts(draft)


def _chains_texts(draft: Draft) -> Iterator[str]:
    for chain in (draft.chain, *(chain for _, chain in draft.locals)):
        yield from _chain_texts(chain)


def _chain_texts(chain: Chain) -> Iterator[str]:
    yield from chain.arguments
    for one in chain.inputs:
        yield from _chain_texts(one)
    yield from _step_texts(chain.steps)


def _step_texts(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        yield from step.arguments
        for value, inner in step.branches:
            yield value
            yield from _step_texts(inner)


def _names(text: str) -> set[str]:
    """Give the names that an argument reads, with its keyword or without."""
    call = ast.parse(f"f({text}\n)", mode="eval").body
    assert isinstance(call, ast.Call)
    parts = (*call.args, *call.keywords)
    return {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)}


def as_module(whole: Decided, *, title: str, origin: str, future: bool) -> Module:
    """Give the model of the module.

    Args:
        whole: what it holds.
        title: first line of its docstring.
        origin: where the values were tuned.
        future: it begins with `from __future__ import annotations`.
    """
    parameters: tuple[Parameter, ...] = whole.draft.parameters
    return Module(
        title=title,
        origin=origin,
        imports=whole.imports,
        pieces=whole.pieces,
        parameters=parameters,
        locals=whole.draft.locals,
        chain=whole.draft.chain,
        future=future,
    )
