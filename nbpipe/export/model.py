"""Model: a module that is to be written, as frozen values; nothing here looks at live objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["setup", "constant", "definition"]


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One name that is imported: `import a.b as c`, or `from a import b as c`.

    Attributes:
        module: dotted name of the module.
        member: what is taken out of it; None imports the module itself.
        alias: name it is given; None keeps its own.
        local: the module is the user's own file, and stands in the last section.
        for_types: it is imported under `if TYPE_CHECKING:` only.
    """

    module: str
    member: str | None = None
    alias: str | None = None
    local: bool = False
    for_types: bool = False

    @property
    def binds(self) -> str:
        """The name it binds in the module: the first part of `import a.b`."""
        if self.alias is not None:
            return self.alias
        return self.module.partition(".")[0] if self.member is None else self.member


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write a piece: its text, and the names of the module that it reads.

    Attributes:
        text: whole lines without a newline at the end, comments included, not indented.
        now: names read while the module is imported.
        later: names read when its functions are called, and in annotations.
    """

    text: str
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of the module: a constant, a definition or a set-up cell.

    Attributes:
        names: the names it binds.
        spellings: ways to write it, the best first; there is one once it is decided.
        expected: what each name must be worth in a fresh process, as `portrait` gives it; a
            name that is missing here is not compared.
        kind: what it is.
        first: where the first of its names was first bound: the number of the cell, of the
            statement in it, and where a statement holds several, its line and column.
        words: what it is called in a message, as "variable 'TABLE', assigned in In[3]".
    """

    names: tuple[str, ...]
    spellings: tuple[Spelling, ...]
    expected: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "definition"
    first: tuple[int, ...] = (0, 0)
    words: str = ""

    @property
    def text(self) -> str:
        """The best way to write it."""
        return self.spellings[0].text

    @property
    def now(self) -> frozenset[str]:
        """Names that its best spelling reads while the module is imported."""
        return self.spellings[0].now

    @property
    def later(self) -> frozenset[str]:
        """Names that its best spelling reads afterwards."""
        return self.spellings[0].later


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of `build_pipeline`.

    Attributes:
        name: its name.
        annotation: its type, as source.
        default: its default, as source.
        positional: it may be given without its name; such parameters come first.
    """

    name: str
    annotation: str
    default: str
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One method call of a chain, as `.map(decode, concurrency=decode_concurrency)`.

    Attributes:
        method: name of the method.
        arguments: its arguments as source, in order, the keyword with its value.
        branches: for `route`, source of each value and the steps of its chain.
    """

    method: str
    arguments: tuple[str, ...] = ()
    branches: tuple[tuple[str, tuple[Step, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """An expression that gives a pipeline: a call of nbpipe, and steps that follow it.

    Attributes:
        head: what begins it, as "nbpipe.source", or the name of a local variable that holds a
            shared beginning; then it is no call, and has neither inputs nor arguments.
        inputs: chains that are its first arguments.
        listed: the inputs are one list, as for `mix`.
        arguments: its further arguments as source.
        steps: what follows.
    """

    head: str
    inputs: tuple[Chain, ...] = ()
    listed: bool = False
    arguments: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A whole module.

    Attributes:
        title: first line of its docstring, without the full stop at its end.
        origin: where the values were tuned: "the notebook" or "the script".
        imports: what it imports, in any order, `nbpipe` among them.
        pieces: in any order, each with one spelling.
        parameters: of `build_pipeline`, in the order of the stages.
        locals: chains that are shared, by the name of the variable that holds each, in order.
        chain: what `build_pipeline` returns.
        future: it begins with `from __future__ import annotations`.
    """

    title: str
    origin: str
    imports: tuple[Import, ...]
    pieces: tuple[Piece, ...]
    parameters: tuple[Parameter, ...]
    locals: tuple[tuple[str, Chain], ...]
    chain: Chain
    future: bool = False
