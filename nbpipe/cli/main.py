"""Main: the command line as it is typed."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.threads import FREE_THREADED
from ..errors import NbpipeError
from ..export.secrets import know, knowing, redacted
from ..show.terminal import printable
from ..version import __version__
from .bench import bench
from .export import export
from .profile import profile
from .run import run
from .terminal import (
    BAD_USAGE,
    DONE,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    BadUsageError,
    FailedError,
    emit,
    log,
    printable_lines,
    secrets_of,
    write_any_character,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_ENDS = "exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted, 143 terminated"
_KEYS = (
    "Keys: up and down choose a stage, + and - change its concurrency, a starts and stops "
    "autotune, p pauses, q quits."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    write_any_character()
    with knowing():
        know(secrets_of(sys.argv[1:] if arguments is None else arguments))
        return _without_reader(lambda: _done(_parser().parse_args(arguments)))


def _done(options: argparse.Namespace) -> int:
    """Run the command, log its error, and return the exit code."""
    name = f"nbpipe {options.name}"
    try:
        return int(options.command(options))
    except FailedError as error:
        log(f"{name}: {error}{_more(error, verbose=options.verbose)}")
        return FAILED
    except NbpipeError as error:
        log(f"{name}: {printable_lines(str(error))}")
        return BAD_USAGE if isinstance(error, BadUsageError) else FAILED
    except KeyboardInterrupt:
        log(f"{name}: interrupted")
        return INTERRUPTED
    except asyncio.CancelledError:
        log(f"{name}: terminated")
        return TERMINATED


def _without_reader(command: Callable[[], int]) -> int:
    """Run a command; the reader of its output may leave."""
    try:
        return command()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _more(error: FailedError, *, verbose: bool) -> str:
    if not error.details:
        return ""
    return f"\n\n{error.details}" if verbose else "\n  (--verbose shows the traceback)"


class _Parser(argparse.ArgumentParser):
    """Shows no secret in what it refuses."""

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        super()._print_message(redacted(message), file)
        if sys.stdout is not None:
            sys.stdout.flush()  # its reader may have left: that is found here, not at exit


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nbpipe",
        description="Export a data-loading pipeline from a notebook, run and profile modules.",
        epilog=_ENDS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action=VersionAction,
        nargs=0,
        help="show the versions of nbpipe, Python and the packages that it works with",
    )
    names = "{" + ",".join(_COMMANDS) + "}"
    commands = parser.add_subparsers(dest="name", required=True, metavar=names)
    for name, (add, text, description) in _COMMANDS.items():
        add(
            commands.add_parser(
                name, allow_abbrev=False, help=text, description=description, epilog=_ENDS
            )
        )
    return parser


def _add_export(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("notebook", type=Path, help="the notebook; it runs in its own folder")
    add(
        "--pipeline",
        default="pipe",
        metavar="NAME",
        help="variable of the pipeline, or of a DataLoader (default: pipe)",
    )
    add(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="the module to write, for example loader.py",
    )
    add(
        "--execute",
        action="store_true",
        help="run the notebook (default: only list what would run)",
    )
    _add_set(parser, "another value for a variable that a cell assigns, for example size=64")
    add("--timeout", type=_limit, default=600, metavar="S", help="time limit [s] (default: 600)")
    add("--overwrite", action="store_true", help="replace a module that was edited by hand")
    add(
        "--check-items",
        type=partial(_whole, minimum=0, unit="items"),
        default=4,
        metavar="N",
        help="first items to compare before the module is written; 0: none (default: 4)",
    )
    add("--assets", choices=["npz"], help="save large arrays beside the module")
    add("--kernel", metavar="NAME", help="the kernel (default: the one that the notebook names)")
    add("--verbose", action="store_true", help="show tracebacks")
    parser.set_defaults(command=export)


def _add_module(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("module", type=Path, help="the module, for example loader.py")
    _add_set(parser, "set a knob, for example decode.concurrency=8 or decode_concurrency=8")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_module(parser)
    whole = partial(_whole, minimum=1, unit="epochs")
    add("--epochs", type=whole, default=1, metavar="N", help="epochs to run (default: 1)")
    add("--autotune", action="store_true", help="turn the knobs by measured gain, and print them")
    add("--json", action="store_true", help="print lines of JSON to stdout, and draw no table")
    add("--verbose", action="store_true", help="show tracebacks")
    parser.set_defaults(command=run)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_module(parser)
    whole = partial(_whole, minimum=1, unit="calls")
    add(
        "--concurrency",
        type=whole,
        nargs="+",
        default=[1, 2, 4, 8],
        metavar="N",
        help="calls at once to measure each stage with (default: 1 2 4 8)",
    )
    add(
        "--seconds",
        type=_limit,
        default=2.0,
        metavar="S",
        help="the most time for each figure [s] (default: 2)",
    )
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--verbose", action="store_true", help="show tracebacks")
    parser.set_defaults(command=profile)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_module(parser)
    add(
        "--vary",
        action="append",
        default=[],
        metavar="KNOB=VALUES",
        help="values to compare, for example decode.concurrency=2,4,8; may be given again: all "
        "combinations are measured",
    )
    add("--seconds", type=_limit, default=5, metavar="S", help="time for each [s] (default: 5)")
    add("--json", action="store_true", help="print JSON to stdout, and draw no table")
    add("--verbose", action="store_true", help="show tracebacks")
    parser.set_defaults(command=bench)


_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str, str]] = {
    "export": (
        _add_export,
        "run a notebook and write its pipeline to a module",
        (
            "Run a notebook in a kernel of its own, and write one of its pipelines to a module. "
            "Without --execute, list what would run. The notebook's file is never changed."
        ),
    ),
    "run": (
        _add_run,
        "run an exported module",
        (
            "Run the pipeline of an exported module, and show its progress: in a terminal as a "
            "table that keys control, elsewhere as lines. " + _KEYS
        ),
    ),
    "bench": (
        _add_bench,
        "measure how fast an exported module is alone",
        (
            "Take items from the pipeline of an exported module as fast as they come, without a "
            "training step, and print the rate for each value of the knobs."
        ),
    ),
    "profile": (
        _add_profile,
        "measure each stage of an exported module alone",
        (
            "Measure how fast each stage of an exported module is alone, with more and fewer "
            "calls at once. Functions are called more than once per item."
        ),
    ),
}


def _add_set(parser: argparse.ArgumentParser, words: str) -> None:
    words += "; may be given again; the value is a Python literal, else text"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=words)


def _limit(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if seconds > 0 and math.isfinite(seconds):
        return seconds
    raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")


def _whole(text: str, minimum: int, unit: str) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(
            f"must be a number of at least {minimum} {unit}, got {text!r}"
        )
    return int(text)


# -- Versions: what a report of a bug must say of the machine that it was seen on ------------------
# What nbpipe works with, where it is installed; the last four show the panel.
_PACKAGES = (
    "numpy",
    "cloudpickle",
    "psutil",
    "torch",
    "distributed",
    "ipykernel",
    "ipywidgets",
    "anywidget",
    "jupyterlab",
    "notebook",
)


class VersionAction(argparse.Action):
    """Prints the versions and ends, as `--version` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        """Print them, a line for each."""
        emit("\n".join(map(printable, versions())))
        parser.exit()


def versions() -> Iterator[str]:
    """Yield the version of nbpipe, of Python and the system, and of each package that is there.

    Nothing is imported for it, and no path or name of this machine is among them.
    """
    build = " free-threaded" if FREE_THREADED else ""
    yield f"nbpipe {__version__}"
    yield f"{platform.python_implementation()} {platform.python_version()}{build}"
    yield f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
