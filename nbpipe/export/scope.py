"""Scope: one namespace of live values, and the text that they came from."""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any, final

from ..executors.pickling import importable
from .cells import Cells, Imported, Statement, of_file, recorded
from .handles import MODULE_NAMES, NOTEBOOK_NAMES
from .model import Import
from .names import Reads, names_read

_KEPT = re.compile(r"_+|_i+|_i?\d+|_[iod]h")  # names under which IPython keeps input and output


@final
class Scope:
    """The global variables of a notebook, a script or a module.

    Args:
        namespace: the live values.
        cells: the text.

    Attributes:
        is_notebook: it is that of a notebook.
    """

    def __init__(self, namespace: dict[str, Any], cells: Cells, *, is_notebook: bool) -> None:
        self.namespace = namespace
        self.cells = cells
        self.is_notebook = is_notebook

    @classmethod
    def of(cls, namespace: dict[str, Any]) -> Scope:
        """Find the text of a namespace; where there is none, it has no cells."""
        if namespace.get("__name__") == "__main__":
            cells = recorded()
            if cells.cells:
                return cls(namespace, cells, is_notebook=True)
        file = namespace.get("__file__")
        try:
            cells = of_file(file) if isinstance(file, str) else Cells(())
        except (OSError, SyntaxError):
            cells = Cells(())
        return cls(namespace, cells, is_notebook=False)

    def __contains__(self, name: str) -> bool:
        return name in self.namespace and not self._is_replaced(name)

    def _is_replaced(self, name: str) -> bool:
        """Tell whether IPython gave a builtin another body, as it does with `open`."""
        whole = getattr(builtins, name, None)
        inside = getattr(self.namespace[name], "__wrapped__", None)
        return whole is not None and inside is whole and self.newest(name) is None

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]

    def newest(self, name: str) -> Statement | None:
        """Return the statement that bound a name last."""
        found = self.cells.bindings(name)
        return found[0] if found else None

    def first(self, name: str) -> tuple[int, int]:
        """Tell where a name was bound first: the cell, and the statement in it."""
        found = self.cells.bindings(name)
        return (found[-1].cell.order, found[-1].number) if found else (sys.maxsize, 0)

    def is_set_inside(self, name: str) -> bool:
        """Tell whether functions alone bind a name, by `global`."""
        return self.newest(name) is None and name in self._rebound

    def is_changed_inside(self, name: str) -> bool:
        """Tell whether some function binds a name by `global`, or changes its value in place."""
        return name in self._rebound or name in self._mutated

    @functools.cached_property
    def _rebound(self) -> frozenset[str]:
        return frozenset(name for reads in self._reads for name in reads[2])

    @functools.cached_property
    def _mutated(self) -> frozenset[str]:
        return frozenset(name for reads in self._reads for name in reads[3])

    @functools.cached_property
    def _reads(self) -> list[Reads]:
        nodes = (one.node for cell in self.cells.cells for one in cell.statements)
        return [names_read(node, future=True) for node in nodes]

    def is_foreign(self, name: str) -> bool:
        """Tell whether a name comes from IPython, and the user has not bound it."""
        known = name in NOTEBOOK_NAMES or _KEPT.fullmatch(name) is not None
        return self.is_notebook and known and self.newest(name) is None

    def name_of(self, value: object) -> str | None:
        """Return the user's name for an object, by identity; None where it has none."""
        names = [
            name
            for name, one in tuple(self.namespace.items())
            if one is value and self._is_name(name)
        ]
        own = getattr(value, "__name__", None)
        ranked = sorted(names, key=lambda name: (name != own, name.startswith("_")))
        return ranked[0] if ranked else None

    def _is_name(self, name: str) -> bool:
        """Tell whether a name is the user's for one thing: loops give theirs to many."""
        newest = self.newest(name)
        loops = newest is not None and isinstance(newest.node, ast.For | ast.AsyncFor)
        return not (loops or self.is_foreign(name) or name in MODULE_NAMES)

    # -- imports --------------------------------------------------------------------------
    def imported(self, name: str, value: object) -> tuple[Import, ...]:
        """Spell a name as the user imported it; empty where no import gives this value.

        `import a.b` and `import a.c` both bind `a`: all of them are given.
        """
        found: list[Import] = []
        for one in self._imports:
            line = _line(one, name)
            if line is None or one.for_types or not gives(line, value):
                continue
            if line.member is not None or line.alias is not None:
                return (line,) if not found else tuple(found)
            found.append(line)
        return tuple(dict.fromkeys(found))

    def for_types(self, name: str) -> Import | None:
        """Return the import of a name under `if TYPE_CHECKING:`."""
        lines = ((_line(one, name), one) for one in self._imports if one.for_types)
        for line, _ in lines:
            if line is not None:
                return Import(line.module, line.member, line.alias, line.local, for_types=True)
        return None

    def alias_of(self, value: object) -> tuple[str, Import] | None:
        """Return the user's name for something imported, and the import."""
        for name, one in tuple(self.namespace.items()):
            if one is value and not self.is_foreign(name):
                lines = self.imported(name, value)
                if len(lines) == 1 and lines[0].binds == name and _binds_whole(lines[0]):
                    return name, lines[0]
        return None

    def member_of(self, value: object) -> tuple[str, str] | None:
        """Spell something by a module that the user imported: `argparse.Namespace`, `argparse`."""
        path = str(getattr(value, "__qualname__", ""))
        for name, module in tuple(self.namespace.items()):
            if not isinstance(module, ModuleType) or not self.imported(name, module):
                continue
            found: object = module
            for part in path.split("."):
                found = getattr(found, part, None)
            if path and found is value:
                return f"{name}.{path}", name
        return None

    @functools.cached_property
    def _imports(self) -> list[Imported]:
        return self.cells.imports()


def _binds_whole(line: Import) -> bool:
    return line.member is not None or line.alias is not None or "." not in line.module


def _line(one: Imported, name: str) -> Import | None:
    """Return what an import has to do with a name."""
    if one.level or one.module == "__future__":
        return None
    local = is_local(one.module)
    if one.member == "*":
        module = sys.modules.get(one.module)
        return Import(one.module, name, None, local) if hasattr(module, name) else None
    if one.binds != name:
        return None
    return Import(one.module, one.member, one.alias.asname, local)


def gives(line: Import, value: object) -> bool:
    """Tell whether an import gives this very object."""
    if line.member is None:
        name = line.module if line.alias is not None else line.module.partition(".")[0]
        return sys.modules.get(name) is value and line.module in sys.modules
    module = sys.modules.get(line.module)
    member = getattr(module, line.member, sys.modules.get(f"{line.module}.{line.member}"))
    return member is value or (type(member) is type(value) and _equal(member, value))


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, int | float | str | bytes | tuple) and one == other


def is_builtin(name: str) -> bool:
    """Tell whether a name is known without being bound."""
    return hasattr(builtins, name) or name in MODULE_NAMES


def is_importable(module: ModuleType) -> bool:
    """Tell whether a fresh process finds the same module by its name."""
    return importable(module.__name__)


@functools.cache
def is_local(module: str) -> bool:
    """Tell whether a module is a file of the user's own, not a part of an installed package."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return False
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None), *getattr(found, "__path__", ())]
    files = [place for place in places if isinstance(place, str)]
    return bool(files) and not any(map(is_installed, files)) and not _is_distributed(top)


def is_installed(file: str) -> bool:
    """Tell whether a file belongs to Python or to an installed package."""
    folders = {sysconfig.get_path(word) for word in ("purelib", "platlib", "stdlib")}
    parts = Path(file).parts
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or any(Path(file).is_relative_to(folder) for folder in folders)
    )


def _is_distributed(top: str) -> bool:
    """Tell whether an installed distribution brings a module, in a folder of its own."""
    from importlib.metadata import packages_distributions

    return top in packages_distributions()
