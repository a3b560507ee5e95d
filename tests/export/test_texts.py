"""The text of statements and definitions, found by code objects."""

import ast
import textwrap
from types import CodeType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.export.cells import Cell, Cells
from nbpipe.export.source import LAZY, names_read

SEPARATOR = "\N{LINE SEPARATOR}"


def executed(*texts):
    """Execute texts as cells; return them, and the names they have bound."""
    names: dict = {}
    for text in texts:
        exec(compile(text, "<cell>", "exec", dont_inherit=True), names)
    cells = (Cell(f"In[{number}]", number, text) for number, text in enumerate(texts, 1))
    return Cells(cells), names


def texts_of(text):
    """Return the text of each statement."""
    return [one.text for one in executed(text)[0].cells[0].statements]


def reads(text, *, future=False):
    """Return the names that a text reads now, later, rebinds and changes."""
    found = names_read(ast.parse(text), future=future)
    return tuple(" ".join(sorted(names)) for names in found)


STATEMENTS = {
    "a comment above": "x = 1\n\n# one\n# two\ny = 2  # three\n",
    "a comment that is not its own": "x = 1\n# of nothing\n\ny = 2\n",
    "a string that looks like a comment": 's = """\n# no"""\ny = 2\n',
    "decorators": "# a\n@staticmethod  # b\n# c\n@(\n    staticmethod\n)\ndef f(): pass  # d\n",
    "a comment at the end of a body": "def f():\n    pass\n\n    # end\n\n# no\n\nx = 1\n",
    "marks of a script": "#!/usr/bin/env python\n# %%\nx = 1\n# %% b\n# c\ny = 2\n",
    "a separator": f"x = 'a{SEPARATOR}b'  # c{SEPARATOR}d\n",
    "a form feed": "x = 1\n\fy = 2\n",
    "tabs": "def f():\n\treturn (1,\n  2)\n",
    "a continued line": "x = 1 + \\\n  2  # c\n",
    "windows": "x = (1,\r\n     2)  # c\r\ny = 3\r\n",
}
CUT = {
    "a comment above": ["x = 1", "# one\n# two\ny = 2  # three"],
    "a comment that is not its own": ["x = 1", "y = 2"],
    "a string that looks like a comment": ['s = """\n# no"""', "y = 2"],
    "decorators": ["# a\n@staticmethod  # b\n# c\n@(\n    staticmethod\n)\ndef f(): pass  # d"],
    "a comment at the end of a body": ["def f():\n    pass\n\n    # end", "x = 1"],
    "marks of a script": ["x = 1", "# c\ny = 2"],
    "a separator": [f"x = 'a{SEPARATOR}b'  # c{SEPARATOR}d"],
    "a form feed": ["x = 1", "y = 2"],
    "tabs": ["def f():\n\treturn (1,\n  2)"],
    "a continued line": ["x = 1 + \\\n  2  # c"],
    "windows": ["x = (1,\n     2)  # c", "y = 3"],
}


@pytest.mark.parametrize("kind", STATEMENTS)
def test_statement_is_cut_out(kind):
    """A statement has its comments and its lines as they were written."""
    assert texts_of(STATEMENTS[kind]) == CUT[kind]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("é = 'ü'; y = 2; z = 3  # c\n", ["é = 'ü'", "y = 2", "z = 3  # c"]),
        ("x = 1;  # c\n", ["x = 1  # c"]),
        ("x = 1; \\\n  y = 2\n", ["x = 1", "y = 2"]),
        ("# a\nx = (1,\n 2); y = (3,\n 4)\n", ["# a\nx = (1,\n 2)", "y = (3,\n 4)"]),
    ],
)
def test_statements_that_share_a_line_are_parted(text, parts):
    """Of a line with several statements each has its own segment."""
    assert texts_of(text) == parts


def test_lambdas_on_one_line_are_told_apart():
    """Each of several lambdas is written as the function that it is, non-ASCII before it or not."""
    cells, names = executed(
        "é = 'ü'; many = [lambda x: (x, 'é'), lambda t: t[0] * 2, lambda x: x > 2]\n"
    )
    found = [cells.definition(one.__code__).text("f") for one in names["many"]]
    assert found == [
        "def f(x):\n    return (x, 'é')",
        "def f(t):\n    return t[0] * 2",
        "def f(x):\n    return x > 2",
    ]


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("f = lambda: 0", "def g():\n    return 0"),
        ("# c\nf = lambda x: x  # d", "# c\ndef g(x):\n    return x  # d"),
        ("f = (lambda x, *a, k={'a': 1}['a']: x)", "def g(x, *a, k={'a': 1}['a']):\n    return x"),
        ("f = lambda x=lambda: 1: x", "def g(x=lambda: 1):\n    return x"),
        ("f = (lambda x:\n     x +\n     1)", "def g(x):\n    return (x +\n        1)"),
        ("f = (lambda: [\n  1,\n])", "def g():\n    return [\n      1,\n    ]"),
        ("f = lambda: (lambda y: y)", "def g():\n    return lambda y: y"),
        ("f = (lambda: (lambda y: y))()", "def g(y):\n    return y"),
        ("f = lambda x: (y := x)", "def g(x):\n    return (y := x)"),
        ("f = lambda: '''a\n  b'''", "def g():\n    return '''a\n  b'''"),
    ],
)
def test_lambda_becomes_a_function(text, function):
    """A lambda's parameters and body stand in the function as they were written."""
    cells, names = executed(text)
    assert cells.definition(names["f"].__code__).text("g") == function


NESTED = '''
class Outer:
    """About."""

    # before
    @staticmethod
    def method(x, *,
        y=1):  # first
        text = """
      kept"""
        if x:
            # inside
            async def inner(z): return z  # last
        return inner, text
'''


def test_method_is_dedented():
    """A method is found in its class, and dedented except within strings."""
    cells, names = executed(NESTED)
    found = cells.definition(names["Outer"].method.__code__)
    assert (found.place, found.line, found.statement.binds, found.text()) == (
        "In[1]",
        6,
        {"Outer"},
        (
            "# before\n@staticmethod\ndef method(x, *,\n    y=1):  # first\n"
            '    text = """\n      kept"""\n    if x:\n        # inside\n'
            "        async def inner(z): return z  # last\n    return inner, text"
        ),
    )


def test_inner_function_is_found():
    """A function inside a method inside a class is found, and renamed."""
    cells, names = executed(NESTED)
    inner, _ = names["Outer"].method(1)
    found = cells.definition(inner.__code__).text("_inner", ["k", "m"])
    assert found == "# inside\nasync def _inner(k, m, z): return z  # last"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("def f():", "def g(k):"),
        ("def f( ):", "def g(k ):"),
        ("def f(x, /, y):", "def g(k, x, /, y):"),
        ("def f(*, x):", "def g(k, *, x):"),
        ("def f(*args):", "def g(k, *args):"),
        ("def f(**kw):", "def g(k, **kw):"),
        ("def f(  # c\n    x):", "def g(k,  # c\n    x):"),
        ("def  f (x: int = 1) -> int:", "def  g (k, x: int = 1) -> int:"),
    ],
)
def test_parameters_are_put_in_front(head, expected):
    """Further parameters come before all others."""
    cells, names = executed(f"{head}\n    return 1\n")
    found = cells.definition(names["f"].__code__).text("g", ["k"])
    assert found == f"{expected}\n    return 1"


def test_newest_definition_is_found():
    """Of the same text in two cells the newer is found, of another text only its own."""
    cells, names = executed("f = lambda: 1\n", "g = f; f = 2\n", "f = lambda: 1\n", "h = 0\n")
    both = cells.definition(names["g"].__code__), cells.definition(names["f"].__code__)
    assert [one.place for one in both] == ["In[3]", "In[3]"]


def test_unknown_code_is_not_found():
    """A function of another text, even of the same name, is not found."""
    cells, _ = executed("def f(): return 1\n")
    _, other = executed("def f(): return 2\n")
    assert cells.definition(other["f"].__code__) is None


def test_future_annotations_are_no_trouble():
    """A function that was compiled under `from __future__ import annotations` is found."""
    names: dict = {}
    text = "def f(x: Missing): return x\n"
    exec(compile("from __future__ import annotations\n", "a", "exec", dont_inherit=True), names)
    exec(compile(text, "a", "exec", 0x1000000, dont_inherit=True), names)
    assert Cells([Cell("In[1]", 1, text)]).definition(names["f"].__code__).text() == text.strip()


def test_imports_beside_a_function_are_no_trouble():
    """A function of a text that was compiled as one is found, though imports change its code."""
    text = "import math\ndef f(x):\n    return math.floor(x)\n"
    cells, names = executed(text)
    statements: dict = {}
    for node in ast.parse(text).body:
        exec(compile(ast.Module([node], []), "<cell>", "exec", dont_inherit=True), statements)
    found = [cells.definition(one["f"].__code__) for one in (names, statements)]
    assert [one.text() for one in found] == ["def f(x):\n    return math.floor(x)"] * 2


BODIES = st.sampled_from(
    [
        "return x + {n}",
        "# a comment\nreturn [x * i for i in range({n})]",
        'text = """a\n  {n}\n    c"""\nreturn text, x',
        "return (x,\n  {n})  # end",
        "def inner(y):\n    return y + x\nreturn inner({n})",
        f"return 'ü{SEPARATOR}', x, {{n}}",
        "return f'{{x}}é{n}' \\\n  + ''",
    ]
)
HEADS = st.sampled_from(["def f(x):", "@(lambda g: g)\ndef f(x, *, y=1):  # head"])
AROUND = st.sampled_from(
    [
        "{f}",
        "é = 'ü'; before = 1  # \u2028\n\n{f}",
        "if True:\n{indented}\nelse:\n    f = None",
        "try:\n{indented}\nfinally:\n    pass",
        "def outer():\n{indented}\n\treturn f\nf = outer()",
        "class A:\n{indented}\nf = A.f",
        "s = '''\n# {f}'''\n@(\n    lambda f: f)\n{f}\nafter = 1",
    ]
)


@given(BODIES, st.integers(0, 9), HEADS, AROUND)
def test_functions_are_found_wherever_they_are(body, n, head, around):
    """A function is found in any surroundings, and its text does what it did."""
    # Indenting a string changes it: what is compared is the function as it was executed.
    function = head + "\n" + textwrap.indent(body.format(n=n), "    ")
    plain = function.replace("'''", "")
    text = around.replace("{indented}", textwrap.indent(function, "\t")).replace("{f}", plain)
    cells, names = executed("f = 0\n", f"{text}\n")
    again: dict = {}
    exec(cells.definition(names["f"].__code__).text("again"), again)
    assert again["again"](2) == names["f"](2)


def codes(code: CodeType):
    """Yield a code object and all inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from codes(value)


@given(
    st.lists(st.sampled_from(["lambda x: x", "lambda: (lambda y: 1)", "(lambda é='ü': é)", "0"]))
)
def test_all_lambdas_of_a_line_are_found(parts):
    """Each lambda of a line, those inside others too, is found by its own code."""
    text = f"many = [{', '.join(parts)}]\n"
    cells = Cells([Cell("In[1]", 1, text)])
    whole = compile(text, "<cell>", "exec", dont_inherit=True)
    found = {
        ast.unparse(cells.definition(code).node)  # Python may give equal ones the same code
        for code in codes(whole)
        if code.co_name == "<lambda>"
    }
    nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Lambda)]
    assert found == {ast.unparse(one) for one in nodes}


@pytest.mark.parametrize(
    ("text", "now", "later"),
    [
        ("K = f(J)", "J f", ""),
        ("x = x + 1", "x", ""),
        ("def f(x=D): return x + K", "D", "K"),
        (
            "@dec\ndef f(x: A, y: 'B[C]') -> Literal['no']: return M",
            *(("dec", "A B C Literal M") if LAZY else ("A Literal dec", "B C M")),
        ),
        ("def f():\n  y: T = 1\n  return [K for K in y if M]", "", "M T"),
        ("class A(B, m=M):\n  x = Y\n  z = x\n  def f(self): return x", "B M Y", "x"),
        ("class A:\n  x = 1\n  y = [x for _ in x]", "x", ""),
        ("class A:\n  def f(self): return __class__, super(), __k", "", "_A__k super"),
        ("for i in r: L.append(i)", "L r", ""),
        ("with o() as h: t = h", "o", ""),
        ("try:\n  import a\nexcept E as e:\n  a = e\nb = a", "E", ""),
        ("if c: a = 1\nb = a", "c", ""),
        (
            "match v:\n  case P(q): q\n  case {'a': m, **r}: m, r\n  case [1, *s] as w: s, w",
            "P v",
            "",
        ),
        ("[(y := K) for K in z]\ny", "z", ""),
        ("g = lambda a, b=B: a + c", "B", "c"),
        ("def f():\n  import a, b.c as d\n  del e\n  return a, d, e", "", ""),
        (
            "def f():\n  x = 1\n  class L:\n    a = x, Z\n  def g():\n    nonlocal x\n    x = 2",
            "",
            "Z",
        ),
        ("x: A = 1\ny: 'B'", *(("", "A B") if LAZY else ("A", "B"))),
        ("from m import *\nimport p.q\np.q", "", ""),
        ("(a for a in b if c)", "b c", ""),
        ("async def f(x):\n  async for y in x: await y, z", "", "z"),
    ],
)
def test_names_are_told_apart(text, now, later):
    """What is read at once is told from what is read later, and what is local is neither."""
    assert reads(text)[:2] == (now, later)


def test_annotations_wait_under_future():
    """Under `from __future__ import annotations`, annotations are read later."""
    assert reads("x: A = 1\ndef f(y: B) -> C: ...", future=True)[:2] == ("", "A B C")


def test_changes_of_globals_are_seen():
    """What functions rebind by `global` or change in place is known; what is local is not."""
    text = """
    def f(x):
        global n
        n += 1
        C[x] = D.a.b = 1
        E["k"].append(x)
        del F[0]
        next(G), W.add_(1)
        own = []
        own.append(x)
    L.append(1)
    """
    assert reads(textwrap.dedent(text))[2:4] == ("n", "C D E F G W")
