"""The front end reads all that the types of the protocol allow, and loses none of it.

Messages are made from the types in Python, with values at the limits of their fields, and read by
the front end's own readers in Node.
"""

import json
import shutil
import subprocess
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.show.inner import (
    Ack,
    ChainAnswer,
    ExportedMessage,
    Hello,
    Here,
    HistoryPart,
    Limits,
    PageLink,
    RunsHello,
    RunsTick,
    Snapshot,
    Tick,
)

JS = Path(__file__).resolve().parent.parent.parent / "js"
NODE = shutil.which("node")
LINKS = ["http://x", "https://[::1]:8787/a?b#" + "x" * 277]  # 300 characters

if NODE is None or not (JS / "node_modules" / "esbuild").exists():
    pytest.skip("the front end's packages are not installed: make js", allow_module_level=True)


@pytest.fixture(scope="module")
def read():
    """Give a function that reads a message by a reader of the front end."""
    command = [NODE, str(JS / "protocol" / "test" / "read.mjs")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as node:

        def read(reader, message):
            node.stdin.write(json.dumps([reader, message], allow_nan=False) + "\n")
            node.stdin.flush()
            return json.loads(node.stdout.readline())

        yield read
        node.stdin.close()


# -- Values at the limits of their types -----------------------------------------------------------
def values(kind):
    """Return a strategy for a type of the protocol."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in (PageLink, HistoryPart):
        return st.sampled_from(LINKS) if kind is PageLink else histories()
    if origin is Annotated:
        return limited(parts[0], parts[1])
    if origin in (Union, UnionType):
        return st.one_of(map(values, parts))
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is NotRequired:
        return values(parts[0])
    if origin is list:
        return st.lists(values(parts[0]), max_size=2)
    if kind is NoneType or kind in (bool, int):
        return {NoneType: st.none(), bool: st.booleans()}.get(kind, st.integers(-9, 9))
    fields = get_type_hints(kind, include_extras=True)
    return st.fixed_dictionaries({name: values(one) for name, one in fields.items()})


def limited(kind, limits):
    """Return a strategy for the values of a type at its limits, and between them."""
    if not isinstance(limits, Limits):
        return values(limits)
    least, most = limits
    if kind is str:
        texts = ("", "x" * most, '<b>\n\t\\"&' * (most // 9), "\N{GRINNING FACE}" * most)
        return st.sampled_from(texts)
    if kind in (int, float):
        return st.sampled_from([kind(least), kind(most), kind(0), kind(1)])
    (part,) = get_args(kind)
    one = values(part)
    return st.lists(one, max_size=1) | one.map(lambda each: [each] * most)


@st.composite
def histories(draw):
    """Return a strategy for a history, whose columns are as long as its times."""
    fields = get_type_hints(HistoryPart, include_extras=True)
    time_s = sorted(draw(values(fields["time_s"])))
    name, rates = get_args(fields["stages"])
    rate = values(get_args(rates)[0])
    stages = {key: [draw(rate)] * len(time_s) for key in draw(st.sets(values(name), max_size=2))}
    rest = {key: draw(values(fields[key])) for key in ("changes", "epoch")}
    return {"time_s": time_s, "stages": stages, **rest}


def as_numbers(message):
    """Return a message with all its numbers as JavaScript has them."""
    return json.loads(json.dumps(message), parse_int=float)


# -- What is read ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        ("parseSnapshot", Snapshot),
        *(("parseMessage", kind) for kind in (Hello, Tick, ExportedMessage)),
        *(("parseRuns", kind) for kind in (Here, RunsHello, RunsTick)),
    ],
)
def test_message_at_its_limits_is_read_whole(read, reader, kind):
    """The front end refuses nothing that the types allow, cuts no text and drops no field."""

    @settings(max_examples=20)
    @given(values(kind))
    def check(message):
        if kind is RunsHello:
            message["protocol"] = 1  # runs of another one are not read
        assert as_numbers(read(reader, message)) == as_numbers(message)

    check()


@given(values(Ack), values(ChainAnswer))
@settings(max_examples=20)
def test_answer_at_its_limits_is_read_whole(read, ack, chain):
    """An answer says whether it was done, and has code where it was, an error where it was not."""
    for answer in (ack, chain):
        answer.pop("error" if answer["ok"] else "code", None)
    assert as_numbers(read("parseMessage", ack)) == as_numbers(ack)
    del ack["value"]  # the list of runs has no use for it
    for answer in (ack, chain):
        found = as_numbers(read("parseRuns", answer))
        assert {key: found.get(key) for key in answer} == as_numbers(answer)


def test_a_value_beyond_its_limits_is_refused(read):
    """The test above would see a reader that refuses."""
    assert "must be" in read("parseSnapshot", {"version": 1})["error"]
