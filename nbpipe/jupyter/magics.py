"""`%nbpipe`: the runs of a session from its prompt, in a notebook and in IPython's terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from IPython.core.error import UsageError

from ..base.format import format_rate, text_table
from ..base.names import own_kind
from ..errors import ArgumentError, ModuleEditedError, NbpipeError, near_match
from ..ops.stage import Stage, addresses
from ..show.watch import ExportReport
from .runs import KernelRuns, ListedRun

_NAME = "nbpipe"
HELP = """
%nbpipe runs                              list the runs of this session
%nbpipe knobs [RUN]                       list the knobs of a run
%nbpipe knobs [RUN] decode.concurrency=8  turn knobs
%nbpipe pause|resume|stop [RUN|all]       do what the buttons of the panel do
%nbpipe undo [RUN]                        end the tuner of a run, and restore the knobs it turned
%nbpipe export loader.py [RUN]            write the pipeline as a module (--overwrite replaces one)
%nbpipe help                              print this

RUN is the number of a run, or the variable of a run, a loader or a pipeline. Without it the newest
run under way is meant, or else the newest.
""".strip()
_NONE = "no run is open; start one with pipe.start()"
_BUTTONS = ("pause", "resume", "stop")
_PLAIN = re.compile(r"[^\s=\"'\\]+")  # what needs no quotes in a line


class _Target(NamedTuple):
    """What a command is about: a run, a loader or a pipeline."""

    called: str
    stages: Mapping[str, Stage]
    export: Callable[..., ExportReport]


@final
class RunMagic:
    """The line magic of one shell, and its completion.

    Args:
        shell: IPython's.
        runs: the runs of this session.

    Attributes:
        runs: these.
    """

    def __init__(self, shell: Any, runs: KernelRuns) -> None:
        self._shell = shell
        self.runs = runs
        self._forget_matchers: Callable[[], None] = lambda: None
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "runs": self._list,
            "knobs": self._knobs,
            **{word: self._button(word) for word in _BUTTONS},
            "undo": self._undo,
            "export": self._export,
            "help": lambda _: HELP,
        }

    def register(self) -> None:
        """Make it known to the shell, and to its completion."""
        self._shell.register_magic_function(self, "line", _NAME)
        self._forget_matchers = add_matchers(self._shell, self._match)

    def forget(self) -> None:
        """Take it and its completion out of the shell."""
        self._shell.magics_manager.magics["line"].pop(_NAME, None)
        self._forget_matchers()

    def __call__(self, line: str) -> None:
        """Do what a line says, and print what is to be told; `%nbpipe help` lists what there is."""
        try:
            word, *rest = shlex.split(line) or ["help"]
        except ValueError as error:
            raise UsageError(f"%nbpipe cannot read this line: {error}") from None
        command = self._commands.get(word)
        if command is None:
            known = f"{', '.join(self._commands)}, got {word!r}{near_match(word, self._commands)}"
            raise UsageError(f"%nbpipe must be followed by one of {known}")
        try:
            told = command(rest)
        except ModuleEditedError as error:
            raise UsageError(error.told("add --overwrite")) from None
        except NbpipeError as error:
            raise UsageError(str(error)) from None
        print(told)  # noqa: T201  the cell is where its reader looks

    # -- commands -------------------------------------------------------------------------
    def _list(self, words: list[str]) -> str:
        _refuse(words, "runs")
        rows = [one.row for one in self.runs.listed()]
        if not rows:
            return _NONE
        head = ("run", "variable", "state", "epoch", "done", "rate", "bottleneck", "stages")
        cells = [
            (
                *(str(row["run"]), row["variable"], row["state"], str(row["epoch"])),
                f"{row['done']:,}" + (f" of {row['total']:,}" if row["total"] is not None else ""),
                *(format_rate(row["rate"], row["unit"]), row["limit"], row["title"]),
            )
            for row in rows
        ]
        return text_table(head, cells)

    def _knobs(self, words: list[str]) -> str:
        given = [word.partition("=") for word in words if "=" in word]
        target = self._target([word for word in words if "=" not in word], "knobs")
        knobs = _knobs_of(target.stages)
        turns = [_checked(target, place, value) for place, _, value in given]
        for knob, number in turns:  # all of them, or none
            knob.set(number, by="%nbpipe")
        if not knobs:
            return f"{target.called} has no knobs"
        wanted = [place for place, _, _ in given] or knobs
        rows = [
            (place, str(knob.value), f"{knob.minimum} to {knob.maximum} {knob.unit}")
            for place in wanted
            for knob in [knobs[place]]
        ]
        return text_table(("knob", "value", "takes"), rows)

    def _button(self, op: str) -> Callable[[list[str]], str]:
        def press(words: list[str]) -> str:
            able = [one for one in self.runs.listed() if op in one.row["actions"]]
            if words == ["all"]:
                chosen = able
            elif words:
                chosen = [self._run(words, op)]
            else:
                chosen = able
                if len(able) > 1:
                    names = ", ".join(map(_called, able))
                    raise ArgumentError(f"%nbpipe {op} must name one of {names}; or: all")
            for one in chosen:
                one.feed.ask(op)
            done = ", ".join(map(_called, chosen))
            return f"{op}: {done}" if done else f"nothing to {op}"

        return press

    def _undo(self, words: list[str]) -> str:
        one = self._run(words, "undo")
        tuner = None if one.run is None else one.run.tuner
        if one.run is None or tuner is None:
            raise ArgumentError(f"{_called(one)} has no tuner; start one with run.autotune()")
        knobs = _knobs_of(one.run.stages)
        before = {place: knob.value for place, knob in knobs.items()}
        tuner.undo()
        turned = [f"{p} {before[p]} → {k.value}" for p, k in knobs.items() if k.value != before[p]]
        return f"undo: {', '.join(turned)}" if turned else "nothing to undo"

    def _export(self, words: list[str]) -> str:
        paths = [word for word in words if word.endswith(".py")]
        rest = [word for word in words if word not in (*paths, "--overwrite")]
        if len(paths) != 1:
            got = " ".join(words) or "nothing"
            raise ArgumentError(f"%nbpipe export needs one path that ends in .py, got {got}")
        target = self._target(rest, "export")
        return str(target.export(paths[0], overwrite="--overwrite" in words))

    # -- names and values -----------------------------------------------------------------
    def _target(self, words: list[str], command: str) -> _Target:
        """Return what some words name: a run, or a variable with stages."""
        value = self._shell.user_ns.get(words[0]) if len(words) == 1 else None
        chain = getattr(value, "chain", None) if _is_ours(value) else None
        if isinstance(chain, tuple) and value is not None:
            return _Target(words[0], addresses(chain), value.export)
        one = self._run(words, command)
        run = one.run
        if run is None:
            raise ArgumentError(f"{_called(one)} is gone; start another run with pipe.start()")
        return _Target(_called(one), run.stages, run.export)

    def _run(self, words: list[str], command: str) -> ListedRun:
        listed = self.runs.listed()
        if not listed:
            raise ArgumentError(_NONE)
        if not words:
            going = [one for one in listed if one.row["state"] in ("running", "paused")]
            return (going or listed)[-1]
        for one in listed:
            if words[0] in (str(one.row["run"]), one.row["variable"]) and words[0]:
                _refuse(words[1:], command)
                return one
        names = ", ".join(map(_called, listed))
        raise ArgumentError(f"%nbpipe {command} must name one of {names}, got {words[0]!r}")

    # -- completion -----------------------------------------------------------------------
    def _match(self, text: str) -> tuple[str, list[str]]:
        """Return the word that a line of the magic ends in, and what it may become."""
        found = _LINE.search(text)
        if found is None:
            return "", []
        *words, word = found["words"].split(" ")
        offered = self.complete([one for one in words if one])
        return word, [one for one in offered if one.startswith(word)]

    def complete(self, words: Sequence[str]) -> list[str]:
        """Return the words that may follow those of a line."""
        if not words:
            return list(self._commands)
        command, *rest = words
        if command == "knobs":
            return [*self._names(pipelines=True), *self._places(rest)]
        if command in _BUTTONS:
            return [*self._names(pipelines=False), "all"]
        if command == "undo":
            return self._names(pipelines=False)
        return self._names(pipelines=True) if command == "export" and rest else []

    def _names(self, *, pipelines: bool) -> list[str]:
        rows = [one.row for one in self.runs.listed()]
        names = [row["variable"] or str(row["run"]) for row in rows]
        if pipelines:
            names += [
                name
                for name, value in tuple(self._shell.user_ns.items())
                if _is_ours(value) and hasattr(value, "chain") and not name.startswith("_")
            ]
        return names

    def _places(self, words: Sequence[str]) -> list[str]:
        """Return the knobs that may be turned, as `decode.concurrency=`."""
        try:
            named = [word for word in words[:1] if word in self._names(pipelines=True)]
            stages = self._target(named, "knobs").stages
        except NbpipeError:
            return []
        return [f"{place}=" for place in _knobs_of(stages) if _PLAIN.fullmatch(place)]


def _is_ours(value: object) -> bool:
    return own_kind(type(value)) == "pipeline"


def _called(one: ListedRun) -> str:
    number, variable = one.row["run"], one.row["variable"]
    return f"run {number} ({variable})" if variable else f"run {number}"


def _refuse(words: Sequence[str], command: str) -> None:
    if words:
        raise ArgumentError(f"%nbpipe {command} takes nothing more, got {' '.join(words)!r}")


def _knobs_of(stages: Mapping[str, Stage]) -> dict[str, Any]:
    """Return the knobs by their places, as "decode.concurrency"."""
    return {
        f"{address}.{name}": knob
        for address, stage in stages.items()
        for name, knob in stage.knobs.items()
    }


def _checked(target: _Target, place: str, value: str) -> tuple[Any, int]:
    knobs = _knobs_of(target.stages)
    knob = knobs.get(place)
    if knob is None:
        known: Iterable[str] = knobs
        raise ArgumentError(
            f"{target.called} has no knob {place!r}{near_match(place, known)} "
            f"(knobs: {', '.join(knobs) or 'none'})"
        )
    return knob, knob.checked(int(value) if re.fullmatch(r"[+-]?\d+", value) else value)


# -- Completion ------------------------------------------------------------------------------------
_LINE = re.compile(rf"^\s*%{_NAME}\s(?P<words>.*)$")
_STAGE = re.compile(
    r"(?P<name>[^\W\d]\w*)\[(?P<quote>[\"'])(?P<address>.*?)(?P=quote)\]\.(?P<word>\w*)$"
)
# Of a line before the cursor: the word that it ends in, and what that may become.
_Match = Callable[[str], tuple[str, list[str]]]


def add_matchers(shell: Any, match_line: _Match) -> Callable[[], None]:
    """Have a shell complete lines of the magic, and `pipe["decode"].` with its knobs first.

    Where one of them has an answer, IPython's own completion is left out: it offers words of
    Python in the magic, and for a stage whatever its class has.

    Args:
        shell: IPython's; one before 8.6, and a shell of another kind, completes as it does.
        match_line: completes a line of the magic.

    Returns:
        A function that takes both away again.
    """
    matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", None)
    if matchers is None:
        return lambda: None
    added = [
        _matcher(match_line, "magic"),
        _matcher(lambda text: names_of_stage(text, shell.user_ns), "instance"),
    ]
    matchers.extend(added)

    def take_away() -> None:
        for one in added:
            matchers.remove(one)

    return take_away


def _matcher(match: _Match, kind: str) -> Any:
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier=f"nbpipe.{kind}")  # type: ignore[untyped-decorator]
    def matcher(context: Any) -> dict[str, Any]:
        word, names = match(context.text_until_cursor)
        return {
            "completions": [SimpleCompletion(text=name, type=kind) for name in names],
            "suppress": bool(names),
            "ordered": True,
            "matched_fragment": word,
        }

    return matcher


def names_of_stage(text: str, variables: Any) -> tuple[str, list[str]]:
    """Return the word that a text ends in, and what it may become: the knobs first.

    Args:
        text: the line before the cursor.
        variables: the user's variables by name.
    """
    found = _STAGE.search(text)
    value: Any = None if found is None else variables.get(found["name"])
    if found is None or own_kind(type(value)) not in ("pipeline", "run"):
        return "", []
    try:
        stage = value[found["address"]]
    except LookupError:
        return "", []
    others = sorted(name for name in dir(stage) if name[0] != "_" and name not in stage.knobs)
    return found["word"], [one for one in (*stage.knobs, *others) if one.startswith(found["word"])]
