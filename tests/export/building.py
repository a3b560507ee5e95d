"""Builders of what a module is made of, for tests."""

import ast
import re

from nbpipe.export.cells import imports_in
from nbpipe.export.module import Import, Line, Module, Parameter, Piece, Spelling
from nbpipe.export.source import names_read


def piece(kind, text, cell, number=0, *, now="", later=""):
    """Build a piece; what it binds is read from its text."""
    lines = ast.parse(text).body
    names = [line.targets[0].id if isinstance(line, ast.Assign) else line.name for line in lines]
    spelling = Spelling(text, frozenset(now.split()), frozenset(later.split()))
    words = f"variable {names[0]!r}, assigned in In[{cell}]"
    return Piece(tuple(names), (spelling,), kind=kind, first=(cell, number), words=words)


def constant(text, cell, number=0, **reads):
    """Build a constant."""
    return piece("constant", text, cell, number, **reads)


def definition(text, cell, number=0, **reads):
    """Build a definition."""
    return piece("definition", text, cell, number, **reads)


def module(pieces, chain, *, imports=(), title="Image loader", **more):
    """Build a module that imports nbpipe and `imports`."""
    imports = (Import("nbpipe"), *imports)
    parameters = more.pop("parameters", ())
    more |= {"title": title, "origin": "the notebook"}
    return Module(parameters, (Line(chain),), imports, tuple(pieces), **more)


def taken_apart(text):
    """Take the text of a module, as it stands between docstring and `main`, apart into values."""
    lines, nodes = text.split("\n"), ast.parse(text).body
    imports = [one for one in imports_in(nodes) if one.module != "nbpipe"]
    future = Import("__future__", "annotations") in imports
    pieces, above = [], 0
    for node in nodes[:-1]:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            now, later, *_ = names_read(node, future=future)
            make = constant if isinstance(node, ast.Assign) else definition
            reads = {"now": " ".join(now), "later": " ".join(later)}
            pieces.append(
                make("\n".join(lines[above : node.end_lineno]).strip(), 1, above, **reads)
            )
        above = node.end_lineno
    build = nodes[-1]
    given = zip(build.args.kwonlyargs, build.args.kw_defaults, strict=True)
    return module(
        pieces,
        re.sub(r"\n *", "", ast.get_source_segment(text, build.body[-1].value)),
        imports=[one for one in imports if one.module != "__future__"],
        parameters=tuple(
            Parameter(one.arg, ast.unparse(one.annotation), ast.unparse(default))
            for one, default in given
        ),
        future=future,
    )
