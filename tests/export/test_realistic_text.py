"""Notebooks whose text is hard to take apart: old habits, odd layouts, names used twice."""

from tests.export.notebooks import Notebook

EXPORT = """
# ---- next cell
pipe = nbpipe.source(range(5)).map(decode)
report = pipe.export("loader.py")
"""


def test_habits_that_a_linter_dislikes(notebook: Notebook):
    """The user's lines stay as they are, and the lint is told to let them be."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        halve = lambda x: x / 2  # quick
        l = [1, 2]
        # ---- next cell
        def decode(x):
            unused = f"nothing"
            if x == None: return -1
            try:
                return halve(x) + l[x % 2]; print("never")
            except:
                return 0
        """
        + EXPORT
    )
    for line in ('unused = f"nothing"', "if x == None: return -1", "except:", "l = [1, 2]"):
        assert line in exported.text
    assert "# quick" in exported.text
    assert "decode" in exported.names


def test_layouts(notebook: Notebook):
    """Semicolons, backslashes, triple quotes and raw strings keep their spelling."""
    exported = notebook.exported(
        r'''
        import nbpipe
        # ---- next cell
        A = 1; B = 2  # both
        LONG = "one " \
            "two"
        TEXT = """first
            second "line"
        third"""
        RAW = r"\d+\s" ; OCT = 0o17; BIG = 1_000_000; HEX = 0xFF
        # ---- next cell
        def decode(
            x, /, a=A,  # first
            *rest: int,
            b=B,
            **more,
        ):
            """Has 'quotes' and \\ in it."""
            match x:
                case 0 | 1:
                    return TEXT, RAW, LONG
                case int() if (y := x * a) > 2:
                    return {**more, "y": y, "b": b, "o": OCT, "big": BIG, "h": HEX}
            return [*rest, f"{x!r:>{a + 3}}"]
        '''
        + EXPORT
    )
    assert 'LONG = "one " \\\n    "two"\n' in exported.text
    assert 'TEXT = """first\n' in exported.text
    assert "BIG = 1_000_000" in exported.text
    assert "    x, /, a=A,  # first\n    *rest: int,\n" in exported.text
    assert set(exported.names) == {"A", "B", "LONG", "TEXT", "RAW", "OCT", "BIG", "HEX", "decode"}


def test_recursion_and_late_names(notebook: Notebook):
    """Functions that call one another, or themselves, are in an order that imports."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def is_even(n):
            return n == 0 or is_odd(n - 1)

        class Tree:
            size = 3

            @classmethod
            def grown(cls, n) -> "Tree":
                return cls(n, [cls.grown(n - 1)] if n else [])

            def __init__(self, n, children):
                self.n, self.children = n, children

            def total(self):
                return self.n + sum(child.total() for child in self.children) + LIMIT
        # ---- next cell
        def is_odd(n):
            return n != 0 and is_even(n - 1)

        LIMIT = Tree.size * 2
        # ---- next cell
        def decode(x):
            return is_even(x), [Tree.grown(n).total() for n in range(x)]
        """
        + EXPORT
    )
    assert set(exported.names) == {"is_even", "Tree", "is_odd", "LIMIT", "decode"}
    assert exported.names.index("Tree") < exported.names.index("LIMIT")
    assert "LIMIT = Tree.size * 2\n" in exported.text


def test_class_bodies_and_defaults_read_constants(notebook: Notebook):
    """What a class body, a default, a decorator and a base need stands before them."""
    exported = notebook.exported(
        """
        import nbpipe
        from dataclasses import dataclass, field
        # ---- next cell
        @dataclass
        class Config:
            sizes: list[int] = field(default_factory=lambda: [1, 2])
            edge: int = 4
        # ---- next cell
        EDGE = 7
        def registered(kind):
            KINDS[kind.__name__] = kind
            return kind
        KINDS = {}
        # ---- next cell
        class Crop:
            edge = EDGE  # in pixels

            def __call__(self, x, config=Config(edge=EDGE)):
                return x + self.edge + config.edge + sum(config.sizes)
        # ---- next cell
        crop = Crop()
        def decode(x):
            return crop(x)
        """
        + EXPORT
    )
    names = exported.names
    assert names.index("EDGE") < names.index("Crop") < names.index("crop")
    assert names.index("Config") < names.index("Crop")
    assert "registered" not in names


def test_names_of_builtins(notebook: Notebook):
    """A function named as a builtin, and a constant that hides one, are the user's."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def filter(x):
            return x + sum
        sum = 10
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(filter).map(filter).map(str)
        report = pipe.export("loader.py")
        """
    )
    assert exported.names == ["sum", "filter"]
    assert exported.chain == "nbpipe.source(range(5)).map(filter).map(filter).map(str)"


def test_classes_and_methods_of_libraries_as_stages(notebook: Notebook):
    """A class of the user, a method of a type and a function of a submodule are stages."""
    exported = notebook.exported(
        """
        import json
        import os.path
        from dataclasses import dataclass
        import nbpipe
        # ---- next cell
        @dataclass
        class Sample:
            name: str
        # ---- next cell
        pipe = (
            nbpipe.source([' "a.jpg" ', '"b/c.png"'])
            .map(str.strip)
            .map(json.loads, prefetch=3)
            .map(os.path.splitext)
            .map(" ".join)
            .map(Sample)
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.imports == [
        "import json",
        "import os.path",
        "from dataclasses import dataclass",
    ]
    assert exported.chain.endswith(
        ".map(str.strip).map(json.loads, prefetch=loads_prefetch).map(os.path.splitext)"
        ".map(' '.join).map(Sample)"
    )


def test_function_of_a_file_that_was_run(notebook: Notebook):
    """A function that `%run` brought is written with the text of its file."""
    text = "SCALE = 4  # of the lab\n\n\ndef scaled(x):\n    # from a file\n    return x * SCALE\n"
    (notebook.folder / "common.py").write_text(text)
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        %run common.py
        # ---- next cell
        def decode(x):
            return scaled(x) + 1
        """
        + EXPORT
    )
    assert exported.names == ["SCALE", "scaled", "decode"]
    assert "def scaled(x):\n    # from a file\n    return x * SCALE\n" in exported.text


def test_star_import_of_a_local_file(notebook: Notebook):
    """`import *` of a file next to the notebook becomes the names that are used."""
    (notebook.folder / "common.py").write_text("def scaled(x):\n    return x * 4\n\n\nOTHER = 1\n")
    exported = notebook.exported(
        """
        import nbpipe
        %load_ext autoreload
        %autoreload 2
        from common import *
        # ---- next cell
        def decode(x):
            return scaled(x) + 1
        """
        + EXPORT
    )
    assert exported.imports == ["from common import scaled"]


def test_function_without_a_text(notebook: Notebook):
    """A function that `exec` made has no text: it is refused by its name."""
    words = notebook.refused(
        """
        import nbpipe
        # ---- next cell
        exec("def decode(x):\\n    return x + 1")
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(decode)
        # ---- next cell
        pipe.export("loader.py")
        """
    )
    assert "'decode'" in words
    assert "stage 'decode'" in words


def test_module_bound_to_another_name_since(notebook: Notebook):
    """The newest binding of a name counts, be it an import or a value."""
    exported = notebook.exported(
        """
        import nbpipe
        import math as tools
        factor = 3
        # ---- next cell
        def decode(x):
            return tools.add(x, factor)
        # ---- next cell
        import operator as tools
        from math import e as factor
        """
        + EXPORT
    )
    assert exported.imports == ["import operator as tools", "from math import e as factor"]
    assert exported.names == ["decode"]


def test_attributes_set_after_the_definition(notebook: Notebook):
    """An instance that was changed since it was made is written as it is now."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        class Scale:
            def __init__(self, by):
                self.by = by

            def __call__(self, x):
                return x * self.by
        # ---- next cell
        scale = Scale(2)
        scale.by = 5
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(scale)
        report = pipe.export("loader.py")
        """
    )
    assert "scale = Scale(by=5)\n" in exported.text
