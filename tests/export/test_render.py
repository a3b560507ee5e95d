"""A module is written as one would write it by hand."""

import ast
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.errors import ExportError
from nbpipe.export import source
from nbpipe.export.module import Import, Line, Parameter, rendered

from .building import constant, definition, module, taken_apart

RUFF = shutil.which("ruff") or f"{sys.prefix}/bin/ruff"
needs_ruff = pytest.mark.skipif(not shutil.which(RUFF), reason="ruff is not installed")
LONG = (
    "nbpipe.source(src)"
    ".map(decode, concurrency=decode_concurrency, prefetch=decode_prefetch)"
    '.map(partial(decode, size=2), executor="process", concurrency=augment_concurrency)'
    ".batch(3)"
)


# Modules without their docstring, the source and `main`.
MODULES = sorted((Path(__file__).parent / "modules").glob("*.txt"))


def shown(text):
    """Return what those files show of a module."""
    text = text.split('"""\n\n', 1)[1].split("\n\n\ndef main()")[0] + "\n"
    return re.sub(r"^def src\(\):.*?\n\n\n", "", text, flags=re.MULTILINE | re.DOTALL)


def ruff(text, folder, *command):
    """Return what ruff says of a text, in a folder without modules."""
    run = subprocess.run(
        [RUFF, *command, "--isolated", "--no-cache", "-"],
        input=text, capture_output=True, encoding="utf-8", cwd=folder, check=False,
    )  # fmt: skip
    return (run.stdout + run.stderr).strip()


def built(chain, **more):
    """Return the lines of `build_pipeline` below its docstring."""
    text = rendered(module([], chain, **more))
    return text.split('notebook."""\n')[1].split("\n\n\ndef main")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_reads_as_written_by_hand(path):
    """Imports, constants, definitions and the chain, with the empty lines that go between."""
    text = path.read_text(encoding="utf-8")
    assert shown(rendered(taken_apart(text))) == text


@needs_ruff
@pytest.mark.parametrize("path", MODULES[::4], ids=lambda path: path.stem)
def test_a_module_passes_the_linter(path, tmp_path):
    """The rules that every exported module must pass find nothing."""
    text = rendered(taken_apart(f"src = 1\n{path.read_text(encoding='utf-8')}"))
    found = ruff(text, tmp_path, "check", "--select=E4,E7,E9,F,I")
    assert found == "All checks passed!"


SHORT = "nbpipe.source(range(8))"
NAMED = 'nbpipe.source(range(8), name="numbers that are counted from zero, one by one, to seven")'
STEP = ".map(decode, concurrency=decode_concurrency, prefetch=decode_prefetch)"
NOTED = f"{SHORT}\n# above\n.map(\n# f\nf  # it\n, n=1  # {'n' * 90}\n)  # behind\n"
CHAINS = {
    "long": LONG,
    "source alone": SHORT,
    "one step": f"{SHORT}.map(f)",
    "one long step": f"{SHORT}{STEP}",
    "long source": f"{NAMED}.map(f, concurrency=n)",
    "both long": f"{NAMED}{STEP}.batch(3)",
    "two steps in a line": f"{SHORT}.map(f).batch(3)",
    "a name": "files.map(f).batch(3)",
    "a name and two long steps": f"files{STEP}{STEP}",
    "a name and three steps": f"files{STEP}{STEP}.batch(3)",
    "joined": f"nbpipe.zip({SHORT}, {SHORT}{STEP}, {LONG}).batch(3)",
    "a list": f"nbpipe.mix([{SHORT}{STEP}, {LONG}, {SHORT}], weights=[1, 2, 3])",
    "branches": f'{SHORT}.route(f, {{"a": lambda chain: chain{STEP}{STEP}, "b": '
    f'lambda chain: chain{STEP}.batch(3), "c": lambda chain: chain}})',
    "comments": f"{NOTED}.map(g)  # last\n.batch(3)",
    "comments on two calls": "nbpipe.source(s)  # s\n.map(f)",
    "a comment on one": "# a\nnbpipe.source(s)  # s",
    "comments in a join": f"nbpipe.zip({NOTED}.batch(2), {NOTED}, {SHORT})",
}


@needs_ruff
@pytest.mark.parametrize("chain", CHAINS)
def test_the_formatter_changes_nothing(chain, tmp_path):
    """A module is as ruff formats it, however long its chain is, with comments and without."""
    pieces = [
        constant("A = [\n    1,\n]", 1),
        constant("# why\nB = 2", 1, 1),
        constant("C = 3", 2),
        definition("# what\ndef decode(x, size=A):\n    return x", 3, now="A"),
        constant("D = decode(1)", 4, now="decode"),
    ]
    parameters = (Parameter("root", "Path", "Path()", positional=True), Parameter("n", "int", "1"))
    full = module(pieces, CHAINS[chain], imports=(Import("re"),), parameters=parameters)
    lines = (Line(CHAINS[chain], "found", ("# this one",)), Line("found"))
    for one in (full, replace(full, body=lines)):
        assert ruff(rendered(one), tmp_path, "format", "--diff", "--quiet") == ""


def test_comments_stay_with_their_calls():
    """What stood above a call or behind it, and on its arguments, stands there."""
    assert built(CHAINS["comments"]) == (
        "    return (\n"
        "        nbpipe.source(range(8))\n"
        "        # above\n"
        "        .map(\n"
        "            # f\n"
        "            f,  # it\n"
        f"            n=1,  # {'n' * 90}\n"
        "        )  # behind\n"
        "        .map(g)  # last\n"
        "        .batch(3)\n"
        "    )"
    )
    assert built(CHAINS["comments on two calls"]) == "    return nbpipe.source(s).map(f)  # s"
    assert built(CHAINS["a comment on one"]) == (
        "    return (\n        # a\n        nbpipe.source(s)  # s\n    )"
    )


@pytest.mark.parametrize("chain", CHAINS)
def test_without_ruff_the_module_means_the_same(chain, monkeypatch):
    """Only the lines differ: comments stand in the same order."""
    whole = module([], CHAINS[chain], imports=(Import("re"), Import("numpy", alias="np")))
    laid_out = rendered(whole)
    monkeypatch.setattr(source, "_find_ruff", lambda: None)
    plain = rendered(whole)
    assert ast.dump(ast.parse(plain).body[-3]) == ast.dump(ast.parse(laid_out).body[-3])
    comments = [re.findall("# .*", text) for text in (plain, laid_out)]
    assert comments[0] == comments[1]
    assert set(plain.split("\n")[5:8]) == {"import nbpipe", "import numpy as np", "import re"}


def test_the_ends_of_a_module():
    """It begins with its docstring and ends with `main`."""
    text = rendered(module([], "nbpipe.source(src)"))
    assert text.startswith(
        '"""Image loader, exported by nbpipe.\n\nTuned values are the defaults of '
        'build_pipeline(). Edit freely: nbpipe does not overwrite edits.\n"""\n\nimport nbpipe\n'
    )
    assert text.endswith(
        '    """Build the pipeline with the values tuned in the notebook."""\n'
        "    return nbpipe.source(src)\n\n\n"
        "def main() -> None:\n    for _ in nbpipe.progress(build_pipeline()):\n        pass\n\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )


def test_positional_parameters_stand_first():
    """The others are given by name."""
    parameters = (
        Parameter("size", "int", "3"),
        Parameter("root", "Path", "Path(\n  'a'\n)", positional=True),
        Parameter("decode_prefetch", "int | None", "None"),
    )
    found = rendered(module([], LONG, parameters=parameters))
    assert (
        "def build_pipeline(\n    root: Path = Path('a'),\n    *,\n"
        "    size: int = 3,\n    decode_prefetch: int | None = None,\n) -> nbpipe.Pipeline:\n"
    ) in found


def test_only_positional_parameters_need_no_star():
    """A star with nothing behind it would be no Python."""
    parameters = (Parameter("root", "Path", "DATA", positional=True),)
    text = rendered(module([], LONG, parameters=parameters))
    assert "def build_pipeline(\n    root: Path = DATA,\n) -> nbpipe.Pipeline:\n" in text


def test_long_calls_have_an_argument_a_line():
    """A call that does not fit is spread; one that does is not."""
    assert built(LONG) == (
        "    return (\n"
        "        nbpipe.source(src)\n"
        "        .map(decode, concurrency=decode_concurrency, prefetch=decode_prefetch)\n"
        "        .map(\n"
        '            partial(decode, size=2), executor="process", concurrency=augment_concurrency\n'
        "        )\n"
        "        .batch(3)\n"
        "    )"
    )


def test_chains_are_joined():
    """Inputs with steps stand one below the other."""
    mixed = "nbpipe.mix([nbpipe.source(b), nbpipe.source(b)], weights=[1, 2])"
    assert built(f"nbpipe.zip(nbpipe.source(a).map(small), {mixed}).batch(4)") == (
        "    return nbpipe.zip(\n"
        "        nbpipe.source(a).map(small),\n"
        "        nbpipe.mix([nbpipe.source(b), nbpipe.source(b)], weights=[1, 2]),\n"
        "    ).batch(4)"
    )


def test_a_list_of_chains_is_spread():
    """Chains that are long have a line for each call."""
    lines = built(f"nbpipe.mix([{LONG}, nbpipe.source(b)])").split("\n")
    assert lines[:3] + lines[-4:] == [
        "    return nbpipe.mix(",
        "        [",
        "            nbpipe.source(src)",
        "            .batch(3),",
        "            nbpipe.source(b),",
        "        ]",
        "    )",
    ]


def test_branches_are_functions_of_a_chain():
    """A branch of one short call stands on a line; the name of its chain is free."""
    steps = LONG.removeprefix("nbpipe.source(src)")
    branches = "'jpg': lambda chain_: chain_.map(chain.decode), "
    branches += f"'png': lambda chain_: chain_{steps}, None: lambda chain_: chain_"
    assert built(f'nbpipe.source(src).route(kind, {{{branches}}}, name="r")') == (
        "    return nbpipe.source(src).route(\n"
        "        kind,\n"
        "        {\n"
        "            'jpg': lambda chain_: chain_.map(chain.decode),\n"
        "            'png': lambda chain_: (\n"
        "                chain_.map(\n"
        "                    decode, concurrency=decode_concurrency, prefetch=decode_prefetch\n"
        "                )\n"
        "                .map(\n"
        "                    partial(decode, size=2),\n"
        '                    executor="process",\n'
        "                    concurrency=augment_concurrency,\n"
        "                )\n"
        "                .batch(3)\n"
        "            ),\n"
        "            None: lambda chain_: chain_,\n"
        "        },\n"
        '        name="r",\n'
        "    )"
    )


ARGUMENTS = [
    '"""a\n  b\n"""', "f(\n        1,\n        '''x\ny''',\n    )", "'''\n'''\\\n   '''\n'''",
    "(1 +\n\t2)", "f'''{1}\n {2}\n'''", "[\n1,\n\n   2]", "f'''{1:\n}''' + f'{2}'",
    "'\u2028\x85\x0c'", "'a\\\n b'", "(x\n for x in 'ab')", "lambda: (\n  1)",
]  # fmt: skip


@given(st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=3), st.booleans())
def test_arguments_mean_what_they_meant(texts, nested):
    """Lines of an argument are indented, those of a string in it are not."""
    chain = f"nbpipe.source({texts[0]}).map({', '.join(texts)}, last=({texts[0]})).batch(2)"
    chain = f"nbpipe.zip({chain}, {chain})" if nested else chain
    found = ast.parse(rendered(module([], chain)))
    calls = [node for node in ast.walk(found) if isinstance(node, ast.Call)]
    maps = [call for call in calls if getattr(call.func, "attr", "") == "map"]
    wanted = [ast.dump(ast.parse(f"({text})", mode="eval").body) for text in texts]
    assert [[ast.dump(node) for node in call.args] for call in maps] == [wanted] * len(maps)


def test_lines_of_pieces_are_kept():
    """Each piece stands as it was written, in lines that end in a line feed."""
    pieces = [
        constant("# x\nA = 1", 1),
        definition("def decode(x):\n    return '''\u2028\n'''\n", 2),
        constant("B = [\n  2]", 3),
    ]
    shown = "# x\nA = 1\n\nB = [\n  2]\n\n\ndef decode(x):\n    return '''\u2028\n'''\n\n\n"
    assert shown in rendered(module(pieces, LONG))


def test_the_order_given_does_not_matter():
    """The same module has the same text."""
    full = taken_apart(MODULES[0].read_text(encoding="utf-8"))
    turned = [
        module(
            random.sample(full.pieces, len(full.pieces)),
            full.body[0].text,
            imports=full.imports[::-1],
            parameters=full.parameters,
        )
        for _ in range(5)
    ]
    assert {rendered(one) for one in turned} == {rendered(full)}


def test_main_gives_way():
    """Where the user has a `main`, ours has another name."""
    pieces = [definition("def main():\n    pass", 1)]
    text = rendered(module(pieces, LONG, imports=(Import("x", "_main"),)))
    assert text.endswith('if __name__ == "__main__":\n    __main()\n')


@pytest.mark.parametrize(
    ("pieces", "imports", "name"),
    [
        ([definition("def build_pipeline():\n    pass", 1)], (), "build_pipeline"),
        ([constant("nbpipe = 1", 1)], (), "nbpipe"),
        ([], (Import("x", "build_pipeline"),), "build_pipeline"),
        ([], (Import("numpy", alias="nbpipe"),), "nbpipe"),
    ],
)
def test_names_that_the_module_needs_are_refused(pieces, imports, name):
    """The message names the culprit and the way out."""
    with pytest.raises(ExportError, match=f"^the name '{name}' must be free") as caught:
        rendered(module(pieces, LONG, imports=imports))
    assert "another name" in str(caught.value)
