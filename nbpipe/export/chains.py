"""Chains as lines of code: one call on each line, an argument a line where that is too long.

A line here may hold line feeds, where a string of the user's goes on over them: whatever
indents lines leaves the inside of strings alone.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence

from .model import Chain, Step

INDENT = "    "
_WIDTH = 88

Lines = list[str]


def unix(text: str) -> str:
    """End the lines of `text` as Python reads them: in a line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def indented(lines: Iterable[str]) -> Lines:
    """Indent lines by one step."""
    return [INDENT + line if line else line for line in lines]


# -- one expression -------------------------------------------------------------------------
def expression(text: str) -> Lines:
    """Lay out an expression of the user's that will stand in brackets: its lines are kept."""
    first, *rest = _code_lines(unix(text).strip())
    rest = [line if line.strip() else "" for line in rest]
    margin = min((_blanks(line) for line in rest if line), key=len, default="")
    lines = [line.removeprefix(margin) for line in rest]
    closes = any(line[:1] in {")", "]", "}"} for line in lines)
    return [first, *(lines if closes else indented(lines))]


def _code_lines(text: str) -> Lines:
    """Split `text` at the line ends that are not inside a string."""
    inside = set(_inside_strings(text))
    lines: Lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if number in inside:
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return lines


def _inside_strings(text: str) -> Iterator[int]:
    """Give the numbers of the lines that begin inside a string."""
    begun: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            yield from range(token.start[0] + 1, token.end[0] + 1)
        elif kind.endswith("STRING_START"):
            begun.append(token.start[0])
        elif kind.endswith("STRING_END"):
            yield from range(begun.pop() + 1, token.end[0] + 1)


def _blanks(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _argument(text: str) -> Lines:
    """Lay out an argument; a generator gets parentheses, which it needs beside others."""
    call = ast.parse(f"f({unix(text).strip()}\n)", mode="eval").body
    given = call.args if isinstance(call, ast.Call) else []
    bare = any(isinstance(node, ast.GeneratorExp) and node.col_offset == 1 for node in given)
    return expression(f"({text.strip()})" if bare else text)


# -- chains ---------------------------------------------------------------------------------
def statement(keyword: str, chain: Chain) -> Lines:
    """Write `return <chain>` or `<name> = <chain>`, as a line of a function's body."""
    if len(chain.steps) + _is_call(chain) <= 1:
        return _calls(chain, _WIDTH - len(INDENT), prefix=f"{keyword} ")
    return [f"{keyword} (", *indented(_calls(chain, _WIDTH - 2 * len(INDENT))), ")"]


def _calls(chain: Chain, room: int, prefix: str = "") -> Lines:
    """Write each call of a chain on a line, or over several; a name stands before the first."""
    if _is_call(chain):
        lines = _head(chain, room, prefix)
    elif not chain.steps:
        return [f"{prefix}{chain.head}"]
    else:
        lines = _step(chain.steps[0], room, f"{prefix}{chain.head}")
    rest = chain.steps if _is_call(chain) else chain.steps[1:]
    return lines + [line for step in rest for line in _step(step, room)]


def _is_call(chain: Chain) -> bool:
    return "." in chain.head or bool(chain.inputs or chain.arguments)


def _head(chain: Chain, room: int, prefix: str) -> Lines:
    apart = any(inner.steps for inner in chain.inputs)
    inside = _inside(_inside(room)) if chain.listed else _inside(room)
    inputs = [_nested(inner, inside) for inner in chain.inputs]
    if chain.listed:
        inputs = [_bracketed("[", inputs, "]", _inside(room), apart=apart)]
    arguments = [_argument(text) for text in chain.arguments]
    return _bracketed(f"{prefix}{chain.head}(", inputs + arguments, ")", room, apart=apart)


def _nested(chain: Chain, room: int, prefix: str = "") -> Lines:
    """Write a chain in brackets: in one line where it fits."""
    lines = _calls(chain, room, prefix)
    one_line = "".join(lines)
    whole = len(lines) <= len(chain.steps) + _is_call(chain)
    return [one_line] if whole and _fits(one_line, room) else lines


def _step(step: Step, room: int, prefix: str = "") -> Lines:
    items = [_argument(text) for text in step.arguments]
    if step.branches:
        items.insert(1, _branches(step, _inside(room)))
    return _bracketed(f"{prefix}.{step.method}(", items, ")", room)


def _branches(step: Step, room: int) -> Lines:
    name = _free_name(step)
    entries = [
        _branch(expression(value), Chain(name, steps=steps), _inside(room))
        for value, steps in step.branches
    ]
    return _bracketed("{", entries, "}", room, apart=len(entries) > 1)


def _branch(value: Lines, chain: Chain, room: int) -> Lines:
    *above, last = value
    prefix = f"{last}: lambda {chain.head}: "
    lines = _nested(chain, room, prefix)
    if len(lines) > 1 and len(chain.steps) > 1:
        lines = [f"{prefix}(", *indented(_calls(chain, _inside(room))), ")"]
    return [*above, *lines]


def _free_name(step: Step) -> str:
    """Name the parameter of a branch as nothing that the branch reads."""
    read = {name for _, steps in step.branches for inner in steps for name in _names(inner)}
    name = "chain"
    while name in read:
        name = f"{name}_"
    return name


def _names(step: Step) -> set[str]:
    found = set(re.findall(r"\w+", " ".join(step.arguments)))
    return found.union(*(_names(inner) for _, steps in step.branches for inner in steps))


def _bracketed(
    head: str, items: Sequence[Lines], close: str, room: int, *, apart: bool = False
) -> Lines:
    """Write `head`, items and `close` in one line where that fits, else each item on its own."""
    one_line = head + ", ".join("\n".join(item) for item in items) + close
    if not items or (_fits(one_line, room) and not apart):
        return [one_line]
    inner = [line for item in items for line in (*item[:-1], f"{item[-1]},")]
    return [head, *indented(inner), close]


def _inside(room: int) -> int:
    """Give the columns of a line that is indented by one more step and ends in a comma."""
    return room - len(INDENT) - 1


def _fits(line: str, room: int) -> bool:
    return "\n" not in line and len(line) <= room
