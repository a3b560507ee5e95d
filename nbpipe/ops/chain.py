"""What is known of a chain before it runs: its order, its length, its names, its outline."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..base.format import html_table, text_table, unit_of
from ..errors import ArgumentError, DuplicateNameError, LengthUnknownError
from .plan import IndexPlan
from .source import Source
from .stage import (
    CONSUMER,
    LONGEST_NAME,
    Chain,
    Operation,
    Stage,
    address_book,
    addresses,
    auto_name,
    changed,
    clean_name,
    numbered,
    share_workers,
    taken_names,
)

SAMPLES, BATCHES = 8, 2  # prefetch of stages before, and from the first batch on


def new_name(chain: Chain, label: str, fn: object, name: str | None) -> tuple[str, bool]:
    """Return the name of a new stage, and whether it was given by hand.

    Raises:
        ArgumentError: no name that can be given.
        DuplicateNameError: the chain has it already.
    """
    taken = taken_names(chain)
    if name is not None:
        check_name(label, name)
        refuse_taken(label, name, taken)
        return name, True
    found = label if fn is None else auto_name(fn, label, len(chain))
    return numbered(clean_name(found), taken), False


def check_name(what: str, name: object) -> str:
    """Check a name given by hand.

    Raises:
        ArgumentError: empty, too long, not printable, with a slash, or reserved.
    """
    usable = isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
    if not usable or "/" in str(name):
        raise ArgumentError(
            f"{what} name must be a printable str of 1 to {LONGEST_NAME} characters without "
            f"'/', got {name!r}"
        )
    if name == CONSUMER:
        raise ArgumentError(
            f"{what} name must not be {CONSUMER!r}: that is the row of the training loop itself"
        )
    return str(name)


def refuse_taken(label: str, name: str, taken: set[str]) -> None:
    """Refuse a name given by hand that is taken."""
    if name in taken:
        raise DuplicateNameError(
            f"{label} name must be new in its pipeline, got {name!r}, which is taken; "
            f"leave it out, or choose another (taken: {', '.join(sorted(taken))})"
        )


def default_prefetch(chain: Chain) -> int:
    """Return the prefetch of a stage after a chain, where none is given."""
    return BATCHES if chain_unit(chain) == "batches" else SAMPLES


def chain_unit(chain: Chain, unit: str = "items") -> str:
    """Return what a chain hands on, "items" or "batches", given what stands before it."""
    for stage in chain:
        unit = unit_behind(stage, unit)
    return unit


def unit_behind(stage: Stage, unit: str) -> str:
    """Return what a stage hands on, "items" or "batches", given what stands before it."""
    if stage.spec.unit is not None or not stage.inputs:
        return stage.spec.unit or unit
    begin = unit if stage.spec.branches else "items"
    return joined_unit(stage.inputs, begin)


def joined_unit(inputs: Sequence[Chain], unit: str = "items") -> str:
    """Return what joined chains hand on: "batches" where all of them do."""
    batched = all(chain_unit(inner, unit) == "batches" for inner in inputs)
    return "batches" if batched and inputs else "items"


def append_plain(
    chain: Chain, spec: Operation, prefetch: int | None = None, words: frozenset[str] = frozenset()
) -> Chain:
    """Append a stage that takes no name."""
    name, named = new_name(chain, spec.label, None, None)
    unit = chain_unit(chain)
    return (*chain, Stage(spec, name=name, named=named, prefetch=prefetch, given=words, unit=unit))


def not_indexed(chain: Chain) -> str:
    """Return what of a chain cannot be read by index."""
    spec, used = absorbed(chain)
    if spec is None:
        return f"source {chain[0].name!r} has no length and index" if chain else "no source"
    stage = chain[min(used, len(chain) - 1)]
    return f"the items of {stage.name!r} ({stage.op}) cannot be read by index"


def absorbed(chain: Chain) -> tuple[Source | None, int]:
    """Absorb the stages that act on an index order into the source.

    Returns:
        The source with its whole plan, and the number of stages it stands for; (None, 0)
        where the chain does not begin with something that has a length and an index.
    """
    if not chain:
        return None, 0
    source = chain[0].spec.indexed(chain[0], index_plan)
    if source is None or (chain[0].inputs and not _is_shuffled_later(chain)):
        return None, 0
    plan = source.plan
    used = 1
    for stage in chain[1:]:
        following = _reordered(plan, stage)
        if following is None:
            break
        plan, used = following, used + 1
    return replace(source, plan=plan), used


def _is_shuffled_later(chain: Chain) -> bool:
    """Return whether another order follows; else the inputs are joined as they come."""
    effects = (stage.spec.permutes for stage in chain[1:])
    return next((bool(effect) for effect in effects if effect is not False), False)


def held_in_order(chain: Chain) -> set[str]:
    """Return the addresses of the stages that keep input order despite `ordered=False`.

    A later stage needs the same items in the same order to continue an epoch: one that remembers
    earlier items, or one that takes apart what was made of several.
    """
    return set(_held_in_order(chain, "", (), address_book(chain)))


def _held_in_order(
    chain: Chain, place: str, later: Chain, book: Mapping[str, str]
) -> Iterator[str]:
    for used, stage in enumerate(chain, 1):
        following = (*chain[used:], *later)
        for number, inner in enumerate(() if stage.spec.branches else stage.inputs):
            yield from _held_in_order(inner, f"{place}{number}/", (stage, *following), book)
        if not stage.spec.in_order and _needs_order(following):
            yield book[place + stage.name]


def _needs_order(chain: Chain, *, gathers: bool = False) -> bool:
    """Report whether any stage of a chain needs the same items in the same order again.

    Args:
        chain: the stages.
        gathers: the items that come to them are made of several.
    """
    for stage in chain:
        spec = stage.spec
        takes_apart = spec.expands or spec.runs == "unbatch"
        if spec.remembers or (gathers and takes_apart):
            return True
        inner = [one for branch in stage.inputs for one in branch]
        if _needs_order(tuple(inner), gathers=gathers):
            return True
        joins = bool(inner) and not spec.branches
        gathers = gathers or joins or spec.gathers or any(one.spec.gathers for one in inner)
    return False


def index_plan(chain: Chain) -> IndexPlan | None:
    """Return the index order of a chain that is nothing but one, else None."""
    source = chain[0].spec.indexed(chain[0], index_plan) if chain else None
    plan: IndexPlan | None = None if source is None else source.plan
    for stage in chain[1:]:
        plan = None if plan is None else _reordered(plan, stage)
    return None if plan is None or plan.claimed else plan


def _reordered(plan: IndexPlan, stage: Stage) -> IndexPlan | None:
    return None if plan.claimed else stage.spec.reorder(plan)


def units(chain: Chain) -> dict[str, str]:
    """Return what each stage hands on, by address: "items" or "batches"."""
    found: dict[str, str] = {}
    _note_units(chain, "", "items", found, address_book(chain))
    return found


def _note_units(
    chain: Chain, place: str, unit: str, found: dict[str, str], book: Mapping[str, str]
) -> None:
    for stage in chain:
        for number, inner in enumerate(stage.inputs):
            if stage.spec.branches:
                _note_units(inner, place, unit, found, book)
            else:
                _note_units(inner, f"{place}{number}/", "items", found, book)
        unit = unit_behind(stage, unit)
        found[book[place + stage.name]] = unit


def length(chain: Chain) -> int:
    """Return the number of items of a chain; an upper bound where failed items are skipped.

    Raises:
        LengthUnknownError: a stage gives a number of items that is not known, or no end of them.
    """
    number = _length(chain)
    if number > sys.maxsize:
        long = "repeats for ever" if number == math.inf else f"has more than {sys.maxsize} items"
        raise LengthUnknownError(f"this pipeline {long}; take(n) gives it an end")
    return int(number)


def known_length(chain: Chain) -> int | None:
    """Return the number of items of a chain, or None where it is not known."""
    try:
        return length(chain)
    except (LengthUnknownError, ArgumentError):  # or the source is too long, as the epoch says
        return None


def emptied_by(chain: Chain) -> tuple[int, int] | None:
    """Return the place of the stage that leaves no item, and how many come to it.

    None where items are left, or where that is not known.
    """
    before = 0
    for place in range(len(chain)):
        count = known_length(chain[: place + 1])
        if not count:
            return None if count is None else (place, before)
        before = count
    return None


def _length(chain: Chain) -> float:
    number: float = 0
    spec, used = absorbed(chain)
    if spec is not None and spec.plan is not None:
        known = spec.plan.length()
        number = math.inf if known is None else known
    for stage in chain[used:]:
        number = stage.spec.length(stage, number, _length)
    return number


BATCHES_EACH = 4  # fewer batches for each worker are made in threads: the first one comes sooner


def settled(chain: Chain, can_send: Callable[[object], bool] = lambda _: True) -> Chain:
    """Decide where to make batches that follow the stage above into its workers.

    Args:
        chain: the stages.
        can_send: tells whether a collate function can be sent to a worker.

    Returns:
        The chain, with those batches in threads that are too few or cannot be made elsewhere.
    """
    found: list[Stage] = []
    for stage in chain:
        if stage.inputs:
            inputs = tuple(settled(inner, can_send) for inner in stage.inputs)
            found.append(stage if inputs == stage.inputs else changed(stage, inputs=inputs))
        elif stage.executor_spec is not None and stage.executor_spec.follows:
            found.append(_settled(stage, tuple(found), can_send))
        else:
            found.append(stage)
    return tuple(found)


def _settled(stage: Stage, above: Chain, can_send: Callable[[object], bool]) -> Stage:
    batches, workers = known_length((*above, stage)), stage.knob("concurrency").value
    if batches is not None and batches < BATCHES_EACH * workers:
        why = f"{batches:,} {unit_of(batches, 'batches')} for {workers} worker{'s' * (workers > 1)}"
    elif not can_send(getattr(stage.spec, "collate", None)):
        why = "its collate function cannot be sent"
    else:
        return stage
    knobs = {name: knob for name, knob in stage.knobs.items() if name != "concurrency"}
    return changed(stage, executor_spec=None, executor="thread", shared=knobs, why=why)


def fingerprint(chain: Chain) -> list[dict[str, Any]]:
    """Tell in JSON-ready values what the items of a chain depend on."""
    return [_stage_fingerprint(stage) for stage in chain]


def _stage_fingerprint(stage: Stage) -> dict[str, Any]:
    about: dict[str, Any] = {"name": stage.name, "op": stage.op, "detail": stage.spec.detail()}
    about |= stage.spec.fingerprint()
    about["inputs"] = [fingerprint(inner) for inner in stage.inputs]
    return about


_HEAD = {  # by column, what it holds
    "stage": "name of the stage",
    "operation": "method that added it",
    "detail": "its arguments",
    "executor": "where its calls run",
}
_KNOBS = {  # by knob, what it limits
    "concurrency": "the most calls at a time",
    "prefetch": "the most results held ready for the next stage",
    "depth": "the most batches held ready on the device",
}


def graph(chain: Chain) -> list[dict[str, Any]]:
    """Return for each stage its name, operation, executor, knobs, and whose workers it shares."""
    rows: list[dict[str, Any]] = []
    above: Stage | None = None
    for address, stage in addresses(chain).items():
        shares = above is not None and share_workers(above, stage)
        rows.append(
            {
                "name": address,
                "op": stage.op,
                "detail": stage.spec.detail(),
                "executor": stage.executor,
                "shares": (rows[-1]["shares"] or rows[-1]["name"]) if shares else None,
                "why": stage.why,
                "knobs": {name: knob.value for name, knob in stage.knobs.items()},
            }
        )
        above = stage
    return rows


def _table(chain: Chain) -> tuple[tuple[str, ...], list[list[str]]]:
    rows = graph(settled(chain))
    knobs = list(_KNOBS)[: 3 if any("depth" in row["knobs"] for row in rows) else 2]
    return (*_HEAD, *knobs), [
        [
            row["name"],
            row["op"],
            row["detail"],
            _where(row),
            *(str(row["knobs"].get(knob, "")) for knob in knobs),
        ]
        for row in rows
    ]


def _where(row: Mapping[str, Any]) -> str:
    if row["shares"]:
        return f"{row['executor']}, with {row['shares']}"
    return f"{row['executor']}: {row['why']}" if row["why"] else str(row["executor"])


def _caption(chain: Chain) -> str:
    count, number = len(addresses(chain)), known_length(chain)
    stages = f"Pipeline of {count} stage{'s' * (count != 1)}"
    if number is None:
        return stages
    unit = next(reversed(units(chain).values()))
    return f"{stages}, {number:,} {unit_of(number, unit)} an epoch{_why_empty(chain)}"


def _why_empty(chain: Chain) -> str:
    """Say which stage leaves a chain without items; empty where there are some."""
    empty = emptied_by(chain)
    if empty is None:
        return ""
    place, before = empty
    name = chain[place].name
    if not place:
        return f": {name} has no items"
    return f": {name} leaves none of {before:,} {unit_of(before, chain_unit(chain[:place]))}"


def as_text(chain: Chain) -> str:
    """Draw a table in plain text."""
    return f"{_caption(chain)}\n{text_table(*_table(chain))}"


def as_html(chain: Chain) -> str:
    """Draw a table in HTML."""
    return html_table(*_table(chain), caption=_caption(chain), hints=_HEAD | _KNOBS)
