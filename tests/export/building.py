"""Builders of what a module is made of, for tests."""

import ast

from nbpipe.export.module import Chain, Import, Module, Piece, Spelling, Step


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


SOURCE = definition("def src():\n    return range(6)", 0)


def module(pieces, chain, *, imports=(), shared=(), title="Image loader", **more):
    """Build a module that imports nbpipe and `imports`."""
    imports = (Import("nbpipe"), *imports)
    return Module(
        title,
        "the notebook",
        imports,
        tuple(pieces),
        more.get("parameters", ()),
        shared,
        chain,
        future=more.get("future", False),
    )


def chained(*steps):
    """Build the chain `nbpipe.source(src)` with steps, each a method and its arguments."""
    return Chain(
        "nbpipe.source", arguments=("src",), steps=tuple(Step(it[0], it[1:]) for it in steps)
    )
