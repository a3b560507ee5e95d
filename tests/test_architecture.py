"""The floors hold: a room imports only from the rooms below it, inside functions and for types too.

Within a room files know each other as they like, as long as no file needs itself.
"""

import ast
import functools
import json
import re
from collections import Counter
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import nbpipe

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nbpipe"

# Bottom-up; a room (a package) or a file that stands alone. Those of one line may know each other.
FLOORS = (
    "version errors",
    "base",
    "executors",
    "ops",
    "engine",
    "show",
    "tune",
    "export",
    "jupyter",
    "run",
    "pipeline progress peek loading",
    "profiling",
    "dataloader",
    "metrics",
    "debug ranks __init__ cli __main__",
)
# How many files a room holds at most, its `__init__` not counted; a room within is counted alone.
# Each operation and each executor is a file, so that their rooms have places left.
MOST_FILES = {
    ".": 9,
    "base": 13,
    "executors": 9,
    "executors/device": 4,
    "executors/workers": 10,
    "ops": 20,
    "engine": 13,
    "engine/measures": 8,
    "engine/nodes": 15,
    "show": 9,
    "show/verdict": 13,
    "tune": 10,
    "export": 15,
    "jupyter": 9,
    "run": 13,
    "run/isolated": 6,
    "profiling": 6,
    "dataloader": 16,
    "metrics": 3,
    "cli": 10,
}
# They import torch when they need it; all others ask whether it is loaded.
IMPORT_TORCH = {
    "executors/device/backend.py",
    "executors/device/device.py",
    "executors/device/leaves.py",
    "ranks.py",
    "dataloader/arguments.py",
}
# Functions longer than 40 lines, as "file:name", each with its reason.
LONG_FUNCTIONS: dict[str, str] = {}

# Users write these names, so that messages and modules may hold them.
PUBLIC = {*nbpipe.__all__, "debug", "metrics", "ranks"}
# They look like modules, and are the names of a comm and of labels in the digests of cache folders.
NO_FILES = {"runs", "operations", "weighted", "claims"}
# Texts that are the name of a class in a room above, and mean something else.
OTHER_CLASSES = {
    ("executors/workers/serialize.py", "Engine"),  # of SQLAlchemy: a connection
    ("executors/device/device.py", "Stream"),  # of torch.cuda
}

FLOOR_OF = {name: number for number, floor in enumerate(FLOORS) for name in floor.split()}
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


@functools.cache
def trees():
    """Return every file of nbpipe, parsed."""
    return {path: ast.parse((PACKAGE / path).read_text(encoding="utf-8")) for path in FILES}


@functools.cache
def nodes_of(tree):
    """Return every node of a file."""
    return tuple(ast.walk(tree))


@dataclass(frozen=True)
class Import:
    """One import of a file of nbpipe by another."""

    source: Path
    target: Path


def dotted(path):
    """Return the parts of a file's module name below nbpipe: `engine/nodes/node.py` gives both."""
    parts = path.with_suffix("").parts
    return parts if parts[-1] != "__init__" else parts[:-1]


FILE_OF = {dotted(path): path for path in FILES}


def place(path):
    """Return the name in FLOORS that a file belongs to."""
    return path.parts[0].removesuffix(".py")


def file_of(parts):
    """Return the file of a module, or None where `parts` is a name inside one."""
    return FILE_OF.get(parts)


def package_of(path, node):
    """Return the parts of the module that a relative `from ... import` statement imports from."""
    package = path.parts[:-1]
    base = package[: len(package) - node.level + 1] + tuple((node.module or "").split("."))
    return tuple(part for part in base if part)


def targets(path, node):
    """List the files of nbpipe that a `from ... import` statement names."""
    base = package_of(path, node)
    return {file_of((*base, alias.name)) or file_of(base) for alias in node.names}


def inside_type_checking(tree):
    """Return the nodes that stand under `if TYPE_CHECKING:`."""
    blocks = [n for n in nodes_of(tree) if isinstance(n, ast.If) and is_type_checking(n.test)]
    return {node for block in blocks for line in block.body for node in ast.walk(line)}


def inside_functions(tree):
    """Return the nodes that stand in the functions of a file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for node in nodes_of(tree) if isinstance(node, kinds)]
    return {node for function in functions for node in ast.walk(function)}


def is_type_checking(test):
    """Return whether an expression is `TYPE_CHECKING` or `typing.TYPE_CHECKING`."""
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


@functools.cache
def imports():
    """List every import between two files of nbpipe."""
    return [
        Import(path, target)
        for path, tree in trees().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for target in targets(path, node)
        if target not in (None, path)
    ]


def is_allowed(found):
    """Return whether an import obeys the floors; a file without a floor has a test of its own."""
    source, target = place(found.source), place(found.target)
    if {source, target} - set(FLOOR_OF):
        return True
    return FLOOR_OF[target] <= FLOOR_OF[source]


def absolute_imports(tree):
    """List the modules that a file imports by absolute name, wherever in it."""
    nodes = nodes_of(tree)
    plain = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return plain + [n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]


def is_private(name):
    """Return whether a name is meant for its own file: `_x`, but not `__x__`."""
    return name.startswith("_") and not name.endswith("__")


def private_names_reached(path, tree):
    """List the private names of other modules of nbpipe that a file imports or reaches."""
    nodes = nodes_of(tree)
    aliases = [
        (package_of(path, node), alias)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    modules = {
        alias.asname or alias.name for base, alias in aliases if file_of((*base, alias.name))
    }
    imported = {alias.name for _, alias in aliases if is_private(alias.name)}
    return imported | {
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute) and is_private(node.attr)
        if isinstance(node.value, ast.Name) and node.value.id in modules
    }


def code_lines(function):
    """Count the lines of a function without its docstring and decorators."""
    doc = function.body[0] if ast.get_docstring(function) else None
    of_doc = doc.end_lineno - doc.lineno + 1 if doc else 0
    return function.end_lineno - function.lineno + 1 - of_doc


def test_every_module_has_its_floor():
    """Each file of nbpipe is in the list of floors."""
    assert [str(path) for path in FILES if place(path) not in FLOOR_OF] == []


def test_rooms_are_small():
    """A room holds no more files than a reader can keep in mind."""
    files = Counter(str(path.parent) for path in FILES if path.name != "__init__.py")
    full = {room: count for room, count in files.items() if count > MOST_FILES[room]}
    assert full == {}


def test_imports_obey_the_floors():
    """A file imports only from below."""
    wrong = [f"{i.source} imports {i.target}" for i in imports() if not is_allowed(i)]
    assert "\n".join(wrong) == ""


def test_no_circles():
    """No file needs itself, over any number of steps, nor for its types."""
    graph = {path: set() for path in FILES}
    for found in imports():
        graph[found.source].add(found.target)
    assert set(TopologicalSorter(graph).static_order()) == set(FILES)


def test_nothing_imports_nbpipe_by_its_name():
    """Inside nbpipe all imports of nbpipe are relative."""
    wrong = [
        f"{path} imports {name}"
        for path, tree in trees().items()
        for name in absolute_imports(tree)
        if name.split(".")[0] == "nbpipe"
    ]
    assert "\n".join(wrong) == ""


def test_private_names_stay_in_their_file():
    """No file imports or reaches a private name of another module."""
    reached = {str(path): private_names_reached(path, tree) for path, tree in trees().items()}
    assert {path: names for path, names in reached.items() if names} == {}


def test_settings_of_the_process_are_left_alone():
    """No file pins threads to cores, or changes limits of the user's process, but for those named.

    The switch interval is put back when an epoch ends, and can be left alone by a variable.
    """
    settings = "sched_setaffinity setswitchinterval setrecursionlimit setrlimit set_start_method"
    found = {
        (path.as_posix(), node.attr)
        for path, tree in trees().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute) and node.attr in settings.split()
    }
    in_workers = {("executors/workers/settings.py", "setrecursionlimit")}  # as the user has it
    assert found == {("base/threads.py", "setswitchinterval")} | in_workers


def test_a_class_name_means_one_thing():
    """No two classes of nbpipe share a name."""
    names = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set()


def texts_of(tree):
    """Return the texts in the code of a file, docstrings left out."""
    nodes = nodes_of(tree)
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [node.value for node in texts if id(node) not in docs]


def folders_of(tree):
    """Return the texts that a file joins to a path with `/`."""
    nodes = [node for node in nodes_of(tree) if isinstance(node, ast.BinOp)]
    divisions = [node for node in nodes if isinstance(node.op, ast.Div)]
    parts = [part for node in divisions for part in (node.left, node.right)]
    return [n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def named_in(text):
    """List what a text names in nbpipe: `nbpipe.ops.stage`, or `.ops.`, or `ops/stage.py`."""
    whole = [match[1] for match in re.finditer(r"\bnbpipe\.(\w+(?:\.\w+)*)", text)]
    part = re.fullmatch(rf"[./](?:{'|'.join(FLOOR_OF)})[./][\w./]*|\w+(?:/\w+)+\.py", text)
    return [tuple(re.findall(r"\w+", one)) for one in (*whole, *([part[0]] if part else []))]


def is_nameable(path, parts):
    """Return whether a file may name something of nbpipe in a text: it exists, and lies below."""
    parts = parts[:-1] if parts[-1] == "py" else parts
    if parts[0] in PUBLIC or ".".join(parts) in NO_FILES:
        return True
    known = (
        file_of(parts) or (parts[1:] and file_of(parts[:-1])) or PACKAGE.joinpath(*parts).is_dir()
    )
    return bool(known) and FLOOR_OF.get(parts[0], 0) <= FLOOR_OF[place(path)]


def test_no_text_names_what_lies_above():
    """A text names no file or module of nbpipe that is not there, or that lies in a room above."""
    wrong = [
        f"{path} names {'.'.join(parts)}"
        for path, tree in trees().items()
        for parts in [
            *(parts for text in texts_of(tree) for parts in named_in(text)),
            *((text,) for text in folders_of(tree) if text in FLOOR_OF),
        ]
        if not is_nameable(path, parts)
    ]
    assert "\n".join(wrong) == ""


def classes():
    """Return the names of all classes at the top of a file, each with its file."""
    return {
        node.name: path
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def test_no_text_is_the_name_of_a_class_above():
    """A file knows no class of a room above by its name: the class registers itself, or says so."""
    home = classes()
    wrong = {
        (path.as_posix(), text)
        for path, tree in trees().items()
        for text in texts_of(tree)
        if text in home and FLOOR_OF[place(home[text])] > FLOOR_OF[place(path)]
    }
    assert wrong == OTHER_CLASSES


def operations():
    """Return the names of the classes of operations, each with its file."""
    found = {"Operation": Path("ops/stage.py")}
    classes = [
        (path, node)
        for path, tree in trees().items()
        if path.parts[0] == "ops"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    for _ in classes:  # until those that stand below others are known, too
        for path, node in classes:
            if set(found) & {getattr(base, "id", "") for base in node.bases}:
                found[node.name] = path
    return found


def types_tested(tree):
    """List the names of types that a file tests for, by `isinstance` or by a pattern."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            yield from (one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name))
        elif isinstance(node, ast.MatchClass):
            yield from (one.id for one in ast.walk(node.cls) if isinstance(one, ast.Name))


def test_an_operation_is_known_to_its_own_file():
    """Nobody tests of which type an operation is: it says itself what others need to know."""
    home = operations()
    wrong = [
        f"{path} tests for {name}"
        for path, tree in trees().items()
        for name in types_tested(tree)
        if home.get(name, path) != path
    ]
    assert "\n".join(wrong) == ""


def early_torch(path, tree):
    """List the imports of torch that a file may not have."""
    aside = inside_type_checking(tree)
    if str(path) in IMPORT_TORCH:
        aside |= inside_functions(tree)
    found = [n for n in nodes_of(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [name for node in found if node not in aside for name in absolute_imports(node)]
    return [name for name in names if name.split(".")[0] == "torch"]


def test_torch_is_loaded_by_few_and_late():
    """Only the files named import torch, and they do it inside functions."""
    wrong = [
        f"{path} imports {n}" for path, tree in trees().items() for n in early_torch(path, tree)
    ]
    assert "\n".join(wrong) == ""


def test_functions_are_short():
    """A function has at most 40 lines of code."""
    long = {
        f"{path}:{node.name}"
        for path, tree in trees().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > 40
    }
    assert long == set(LONG_FUNCTIONS)


def test_notebooks_are_stored_with_their_outputs():
    """Where one cell has run, all have, in order; no output names a home or needs a kernel."""
    wrong = []
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        text = path.read_text(encoding="utf-8")
        counts = [
            one.get("execution_count") for one in json.loads(text)["cells"] if "outputs" in one
        ]
        if any(counts) and counts != list(range(1, len(counts) + 1)):
            wrong.append(f"{path.name} did not run from top to bottom: type make notebooks")
        wrong += [
            f"{path.name}: {word}"
            for word in ("/home/", "/root/", "/work/", "Traceback", "widget-view+json")
            if word in text
        ]
    assert wrong == []
