"""Lambdas, written as functions with a name."""

from __future__ import annotations

import ast
from tokenize import TokenInfo

from .lines import Lines, indent_of

_STEP = "    "


def lambda_text(
    lines: Lines, node: ast.Lambda, name: str, parameters: tuple[str, ...], *, alone: bool
) -> str:
    """Give a lambda as a `def` that returns its body.

    Args:
        lines: the text that it stands in.
        node: the lambda.
        name: of the function.
        parameters: what is put before its own.
        alone: it has its lines to itself, and with them their comments.
    """
    start = (node.lineno, lines.column(node.lineno, node.col_offset))
    last = node.end_lineno or node.lineno
    end = (last, lines.column(last, node.end_col_offset or 0))
    tokens = [one for one in lines.tokens if start <= one.start and one.end <= end]
    colon = _colon(tokens)
    own = _joined(_cut(lines, tokens[0].end, colon.start)).strip()
    head = ", ".join([*parameters, *([own] if own else [])])
    body = _body(lines, colon.end, end)
    above, after = _comments(lines, node) if alone else ([], "")
    return "\n".join([*above, f"def {name}({head}):", f"{_STEP}return {body}{after}"])


def _colon(tokens: list[TokenInfo]) -> TokenInfo:
    """Give the colon that ends the parameters; defaults may hold lambdas and brackets."""
    depth = waiting = 0
    for one in tokens:
        depth += (one.string in {"(", "[", "{"}) - (one.string in {")", "]", "}"})
        waiting += one.string == "lambda" and not depth
        if one.string == ":" and not depth:
            waiting -= 1
            if not waiting:
                return one
    raise ValueError("a lambda has a colon")


def _cut(lines: Lines, start: tuple[int, int], end: tuple[int, int]) -> dict[int, str]:
    whole = {number: lines[number] for number in range(start[0], end[0] + 1)}
    whole[end[0]] = whole[end[0]][: end[1]]
    whole[start[0]] = whole[start[0]][start[1] :]
    return whole


def _joined(whole: dict[int, str]) -> str:
    return "\n".join(whole.values())


def _body(lines: Lines, start: tuple[int, int], end: tuple[int, int]) -> str:
    whole = _cut(lines, start, end)
    first = next(number for number, line in whole.items() if line.strip(" \t\f\\"))
    whole = {number: line for number, line in whole.items() if number >= first}
    whole[first] = whole[first].strip(" \t\f") if len(whole) == 1 else whole[first].lstrip(" \t\f")
    wraps = len(whole) > 1 and not _stands_alone(_joined(whole))
    movable = [n for n in whole if n > first and n not in lines.in_string and whole[n].strip()]
    least = min((len(indent_of(whole[n])) for n in movable), default=0)
    step = _STEP * 2 if wraps else _STEP
    for number in movable:
        whole[number] = step + whole[number][least:]
    return f"({_joined(whole)})" if wraps else _joined(whole)


def _stands_alone(text: str) -> bool:
    """Tell whether `return text` returns all of it."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _comments(lines: Lines, node: ast.Lambda) -> tuple[list[str], str]:
    """Give the comments above a lambda's first line, and the one at the end of its last."""
    indent = indent_of(lines[node.lineno])
    above = lines.block_above(node.lineno, indent)
    found = [lines[number][len(indent) :] for number in range(above, node.lineno)]
    last = [one for one in lines.tokens if one.start[0] == node.end_lineno]
    ends = [one.string for one in last if one.string.startswith("#")]
    return found, "".join(f"  {text}" for text in ends)
