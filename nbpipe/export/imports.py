"""Import block: the imports of a module in sections, as isort sorts them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from .model import Import

_WIDTH = 88
_INDENT = "    "
_NATURAL = re.compile(r"[0-9]+|[^0-9]")


def import_block(imports: Iterable[Import], *, future: bool) -> str:
    """Write imports, without a newline at the end; what is only for types stands last.

    Args:
        imports: in any order; one that is given twice is written once.
        future: begin with `from __future__ import annotations`.

    Source: isort's "profile = black", as ruff's rule I001 has it.
    """
    wanted = _settled(imports)
    for_types = [line for line in wanted if line.for_types]
    real = [line for line in wanted if not line.for_types]
    if future:
        real.append(Import("__future__", "annotations"))
    if for_types:
        real = list({*real, Import("typing", "TYPE_CHECKING")})
    blocks = [_sorted_block(real, _WIDTH)]
    if for_types:
        block = _sorted_block(for_types, _WIDTH - len(_INDENT))
        blocks.append("if TYPE_CHECKING:\n" + re.sub(r"(?m)^(?=.)", _INDENT, block))
    return "\n\n".join(block for block in blocks if block)


def _settled(imports: Iterable[Import]) -> list[Import]:
    """Give each import once: for the program rather than for types, local where one says so."""
    given = set(imports)
    local = {line.module for line in given if line.local}
    real = {_what(line) for line in given if not line.for_types}
    return sorted(
        {
            Import(*_what(line), local=line.module in local, for_types=line.for_types)
            for line in given
            if not (line.for_types and _what(line) in real)
        },
        key=lambda line: (_module_key(line), _member_key(line), _natural(line.alias or "")),
    )


def _what(line: Import) -> tuple[str, str | None, str | None]:
    return line.module, line.member, line.alias


def _sorted_block(imports: list[Import], width: int) -> str:
    by_section = sorted(imports, key=_section)
    sections = [list(lines) for _, lines in groupby(by_section, key=_section)]
    return "\n\n".join("\n".join(_statements(lines, width)) for lines in sections)


def _section(line: Import) -> int:
    if line.module == "__future__":
        return 0
    if line.local:
        return 3
    return 1 if line.module.partition(".")[0] in sys.stdlib_module_names else 2


def _statements(section: list[Import], width: int) -> Iterator[str]:
    """Write a section: `import a` first; members of one module together, each alias alone."""
    whole = [line for line in section if line.member is None]
    for line in sorted(whole, key=lambda line: (_module_key(line), _alias_key(line))):
        yield f"import {line.module}{_as(line)}"
    together: dict[tuple[str, str | None, str | None], list[Import]] = {}
    for line in section:
        if line.member is not None:
            apart = (line.member, line.alias) if line.alias else (None, None)
            together.setdefault((line.module, *apart), []).append(line)
    groups = [sorted(lines, key=_member_key) for lines in together.values()]
    for lines in sorted(groups, key=lambda lines: (_module_key(lines[0]), _member_key(lines[0]))):
        yield _from(lines, width)


def _from(lines: list[Import], width: int) -> str:
    head = f"from {lines[0].module} import "
    members = [f"{line.member}{_as(line)}" for line in lines]
    one_line = head + ", ".join(members)
    if len(one_line) <= width or members == ["*"]:
        return one_line
    return "\n".join([f"{head}(", *(f"{_INDENT}{member}," for member in members), ")"])


def _as(line: Import) -> str:
    return f" as {line.alias}" if line.alias else ""


def _module_key(line: Import) -> Any:
    return _natural(line.module.lower()), _natural(line.module)


def _member_key(line: Import) -> Any:
    """Sort constants first, then classes, then the rest, each by name."""
    member = line.member or ""
    constant = len(member.encode()) > 1 and member.isupper()  # ruff counts bytes
    rank = 0 if constant else 1 if member[:1].isupper() else 2
    return (
        member != "*",
        rank,
        _natural(member.lower()),
        _natural(member),
        _alias_key(line),
    )


def _alias_key(line: Import) -> Any:
    return line.alias is not None, _natural(line.alias or "")


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Give a key that sorts `x9` before `x10`: a run of digits counts as a number."""
    return tuple(_natural_part(part) for part in _NATURAL.findall(text))


def _natural_part(part: str) -> tuple[int, int, str]:
    if not "0" <= part[0] <= "9":
        return ord(part), 0, ""
    # A run that begins with 0 is read as decimals: it sorts before the others, as text.
    return ord("0"), 0 if part[0] == "0" else len(part), part
