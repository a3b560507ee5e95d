"""Pipeline: a frozen chain of stages. Every method returns a new one; only knobs ever change."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Literal, final

from . import outline
from .chaining import Chaining
from .iterator import EpochIterator
from .lengths import length
from .operations import flag, whole
from .run import Run
from .stage import Stage, addresses, stage_at
from .units import parse_bytes

if TYPE_CHECKING:
    from .export.exporting import Exported


@final
class Pipeline(Chaining):
    """A frozen chain of stages; begin one with `nbpipe.source(...)`.

    Pipelines made from one another share their stages, and so their knobs.
    """

    __slots__ = ()

    # -- running --------------------------------------------------------------------------
    def start(
        self, *, seed: int = 0, isolate: bool = False, memory: int | str | None = None
    ) -> Run:
        """Start a run: it owns its workers until it is closed, epoch after epoch.

        Args:
            seed: seed of every `rng`.
            isolate: have all stages, with their threads, in one process of their own, so that
                the loop keeps the GIL to itself; items, knobs, stats and errors are the same.
                What the stages capture is sent there, now and after a cell changed it.
            memory: budget for what all buffers hold, as "2 GB" or a number of bytes.

        Raises:
            ArgumentError: a seed that is no int, a budget that cannot be read, or with
                `isolate` an executor object, which cannot go along.
            UnpicklableError: with `isolate`, part of a stage cannot be sent to a process.
        """
        seed = whole("seed", seed, minimum=-(2**63), maximum=2**64)
        budget = None if memory is None else parse_bytes(memory)
        if not flag("isolate", isolate):
            return Run(self.chain, seed=seed, memory_bytes=budget)
        from .isolate.machine import IsolatedMachine

        return Run(self.chain, seed=seed, memory_bytes=budget, machine=IsolatedMachine)

    def __iter__(self) -> EpochIterator:
        """Run one epoch, number 0; everything is closed after it, also after `break`."""
        return self.start().single_epoch()

    def __len__(self) -> int:
        """Give the number of items of an epoch.

        Raises:
            LengthUnknownError: it is not known before they are made.
        """
        return length(self.chain)

    def __bool__(self) -> bool:
        return True

    def peek(self, n: int = 1) -> Any:
        """Run until `n` items came out, in this thread; show what each stage gave, and its time.

        Nothing is left running.

        Returns:
            A `Peek`: prints as a table, with pictures of images in a notebook; `.items` holds
            the items.
        """
        from .peek import peek

        return peek(self.chain, whole("peek n", n, minimum=1, unit="items"))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        check_items: int = 4,
        assets: Literal["npz"] | None = None,
    ) -> Exported:
        """Write a module of plain Python that builds this pipeline, with the knobs' values.

        It holds what the stages use, as it was written, with the live values. Before anything is
        written a fresh process imports it and compares it with this pipeline.

        Args:
            path: the file, as "loader.py"; its folder exists.
            overwrite: replace a file that was edited since, or that export did not write.
            check_items: first items that are compared [items]; 0 compares none.
            assets: "npz" saves arrays of more than 64 elements beside the module.

        Raises:
            ArgumentError: a path that no module can be imported from.
            ExportError: something cannot be written; it names the culprit, its use and the fix.
        """
        from .export.exporting import export_chain

        again = functools.partial(iter, self)
        return export_chain(
            self.chain,
            path,
            items=again,
            overwrite=overwrite,
            check_items=check_items,
            assets=assets,
        )

    # -- looking in -----------------------------------------------------------------------
    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, those of joined pipelines and branches included."""
        return tuple(addresses(self.chain).values())

    def __getitem__(self, address: str) -> Stage:
        """Give a stage by its name, or by its place and name: `pipe["0/decode"]`.

        Raises:
            UnknownStageError: there is none; the message names those there are.
        """
        return stage_at(addresses(self.chain), address, "pipeline")

    def _ipython_key_completions_(self) -> list[str]:
        return list(addresses(self.chain))

    def graph(self) -> list[dict[str, Any]]:
        """Give the chain as data: for each stage its name, operation, executor and knobs."""
        return outline.graph(self.chain)

    def __repr__(self) -> str:
        return outline.as_text(self.chain)

    def _repr_html_(self) -> str:
        return outline.as_html(self.chain)
