"""Pipeline: a frozen chain of stages. Every method returns a new one; only knobs ever change.

It begins with `source`, or with several that become one: `zip`, `concat`, `mix`, `interleave`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

from .base.checks import boolean, integer
from .base.format import parse_bytes
from .base.names import methods_name_arguments, names_arguments, own, shown
from .errors import ArgumentError, ArgumentTypeError
from .executors.workers.serialize import can_be_sent
from .ops.batch import append_batch, append_unbatch
from .ops.cache import append_cache
from .ops.call import OnError, append_call
from .ops.chain import as_html, as_text, check_name, graph, joined_unit, length, settled
from .ops.checkpoint import claims_in
from .ops.cut import append_enumerate, append_repeat, append_skip, append_take, append_window
from .ops.dedupe import append_dedupe
from .ops.device import append_to_device, check_end
from .ops.index import Store, Tail
from .ops.join import Concat, Interleave, Mix, Zip, mix_weights
from .ops.route import append_route, grown_branches
from .ops.sample import append_balance, append_claim, append_sample
from .ops.shard import append_shard
from .ops.shuffle import append_shuffle
from .ops.source import Source, source_of
from .ops.stage import Chain, Operation, Stage, addresses, stage_at
from .run.iterator import EpochIterator
from .run.run import Run, single_epoch
from .run.shown import ShownRun
from .tune.tuner import limits_of

if TYPE_CHECKING:
    from .export.store import Exported


@final
@own("pipeline")
@methods_name_arguments
class Pipeline:
    """A frozen chain of stages; begin one with `nbpipe.source(...)`.

    Pipelines made from one another share their stages, and so their knobs.

    Attributes:
        chain: the stages.
    """

    __slots__ = ("__weakref__", "chain")

    chain: Chain

    def __init__(self, chain: Chain) -> None:
        check_end(chain)
        object.__setattr__(self, "chain", chain)

    def __setattr__(self, name: str, value: object) -> None:
        raise ArgumentTypeError(
            f"a pipeline is frozen: cannot set {name!r}; its methods return new pipelines, and "
            "knobs are set on its stages: pipe['decode'].concurrency = 8"
        )

    def __delattr__(self, name: str) -> None:
        raise ArgumentTypeError(f"a pipeline is frozen: cannot delete {name!r}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle a pipeline: it lives in the process it runs in")

    def __dir__(self) -> list[str]:
        return shown(self, ("chain",))

    def _with(self, chain: Chain) -> Pipeline:
        return Pipeline(chain)

    def map(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        executor: object = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
        max_failures: int | float | None = None,
        timeout_s: float | None = None,
        worker_init: Callable[[], object] | None = None,
        max_items_per_worker: int | None = None,
        copy: bool = True,
        region: bool = True,
        device: object = None,
        depth: int | None = None,
    ) -> Pipeline:
        """Call `fn` on every item.

        Args:
            fn: a function of one item, or an `async def`, which runs on the run's event loop. A
                parameter named `rng` receives a `numpy.random.Generator` that depends only on
                the run's seed, the epoch, the stage's name and the item's place.
            name: name of the stage; its function's where not given.
            executor: "thread" (the default of a plain function); "inline": fused with the
                stage before it, without a queue or knobs of its own; "process": worker
                processes, which start with the first item; "dask", a Dask client or a
                `DaskExecutor`; any `concurrent.futures.Executor`. Neighbours in workers share
                them, and their concurrency: an item goes through all of them in one worker.
            concurrency: calls in progress at once [calls], 1 to 1,024, in processes 1 to 256; a
                live knob. 1, or that of the workers it shares, where not given.
            prefetch: results held ready beyond one for each running call [items], 1 to 65,536;
                a live knob. 8, and 2 from the first batch on, where not given.
            ordered: keep the order of the input; False delivers in completion order, but not on a
                device, nor before a stage that needs the order for a resume: `dedupe`,
                `window`, `batch(cost=)`, or one that takes batches apart.
            on_error: "raise" ends the epoch with a `StageError` after every earlier item was
                delivered; "skip" drops the item; `Retry(times)` tries again.
            max_failures: with skipping, how many items of an epoch may fail: an int is a
                count, a float between 0 and 1 a share, judged after 100 items and at the end.
            timeout_s: longest time of one call [s], of an `async def` or in a worker, which is
                killed then. In another executor the call continues, and its item has failed.
            worker_init: function called once in each worker, before its first item.
            max_items_per_worker: replace a worker process after so many items [items].
            copy: copy results out of the memory shared with worker processes where many are
                kept; False gives views, which hold their piece of it until they are dropped.
            region: False keeps a stage apart from its neighbours, in workers of its own.
            device: call `fn` on the run's stream of this device, as "cuda", one item after the
                other: with what `to_device` gave, and in order before the loop.
            depth: with a device, batches held ready on it [batches], 1 to 16; a live knob. 2, or
                that of the neighbours on the device, where not given.

        Raises:
            ArgumentError: a value out of range, or arguments that exclude one another.
            ArgumentTypeError: `fn` cannot be called.
            KnobError: a knob out of range.
            DuplicateNameError: the chain has a stage of this name.
        """
        return self._with(append_call(self.chain, "map", fn, locals()))

    def filter(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        executor: object = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
        max_failures: int | float | None = None,
        timeout_s: float | None = None,
        worker_init: Callable[[], object] | None = None,
        max_items_per_worker: int | None = None,
        copy: bool = True,
        region: bool = True,
    ) -> Pipeline:
        """Keep the items for which `fn` is true. Options and errors as in `map`."""
        return self._with(append_call(self.chain, "filter", fn, locals()))

    def flat_map(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        executor: object = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
        max_failures: int | float | None = None,
        timeout_s: float | None = None,
        worker_init: Callable[[], object] | None = None,
        max_items_per_worker: int | None = None,
        copy: bool = True,
        region: bool = True,
    ) -> Pipeline:
        """Call `fn` on every item and hand on each of the items that it gives.

        `fn` returns an iterable, or is a generator or async generator: what it yields is handed
        on at once, and no more is drawn than there is room for. A retried call starts again and
        its first items, already handed on, are left out. Other options and errors as in `map`.
        """
        return self._with(append_call(self.chain, "flat_map", fn, locals()))

    def batch(
        self,
        size: float,
        *,
        drop_last: bool = False,
        collate: Callable[..., Any] | None = None,
        names: Sequence[str] | None = None,
        dtype: object = None,
        pad: object = None,
        cost: Callable[..., Any] | None = None,
        executor: object = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        name: str | None = None,
    ) -> Pipeline:
        """Gather items into batches: arrays (H, W, C) become one array (B, H, W, C).

        Args:
            size: items in a batch, at least 1; with `cost`, the most that their costs sum to.
            drop_last: leave out a last batch that is not full.
            collate: function of a list of items; None stacks arrays and tensors, through dicts,
                tuples, lists and dataclasses; numbers become an array, beside tensors a tensor.
            names: names for the fields of tuples; the batch becomes a dict.
            dtype: type that floating arrays and tensors are cast to.
            pad: value that fills ragged dimensions up to the longest.
            cost: function that gives an item's share of `size`: tokens, pixels. An item that costs
                less than 0 or more than `size` ends the epoch.
            executor: where to make batches, as for `map`. None makes them in the worker processes
                of the `map` stages before, if those drop no items and there are at least four
                batches for each worker; otherwise in threads, one after the other. "thread"
                always makes them in threads.
            concurrency: in workers, batches made at once [calls]; that of the stages before
                where it shares their workers.
            prefetch: batches held ready [batches]; a live knob.
            name: name of the stage.

        Raises:
            ArgumentError: a size below 1, or arguments that exclude one another.
        """
        options = {"drop_last": drop_last, "collate": collate, "names": names, "dtype": dtype}
        options |= {"pad": pad, "cost": cost, "executor": executor, "concurrency": concurrency}
        return self._with(append_batch(self.chain, size, options, name, prefetch))

    def to_device(self, device: object, *, depth: int = 2, stream: object = None) -> Pipeline:
        """Copy each batch to a device, on a stream of its own, while the loop works.

        Tensors in dicts, lists, tuples, named tuples and dataclasses are copied, arrays of
        numbers become tensors, and what has a method `to` is moved by it; other leaves pass.
        Neighbours on one device, copies and `map(device=)`, run one after the other, in order.
        What comes after, the loop included, waits for a batch on its own stream, not in its
        thread. Use a batch on one stream: where others read it, too, call `record_stream`.

        Args:
            device: torch device, as "cuda", "cuda:1" or "cpu". "cpu" lets pass what lies on the
                host, and copies back what lies on a device.
            depth: batches held ready on the device [batches], 1 to 16; a live knob. As many more
                the loop's thread may be ahead of what its stream has read: memory of the device
                is about that of 2 * depth + 4 batches and those that the loop keeps; pinned
                memory as much, which torch rounds up to powers of two.
            stream: a stream of that device to use instead of the run's own.

        Returns:
            A pipeline of batches on `device`, of the same shape and dtype; a (B, C, H, W) float32
            batch stays (B, C, H, W) float32.

        Raises:
            ArgumentError: no name of a device, a depth out of range; when a run starts, no such
                device in this machine.
            MissingExtraError: when a run starts, torch is not installed.

        Source: PyTorch "CUDA semantics", asynchronous copies.
        """
        return self._with(append_to_device(self.chain, device, depth, stream))

    def unbatch(self) -> Pipeline:
        """Take batches apart again: of (B, H, W, C) come B items (H, W, C), of a list its own."""
        return self._with(append_unbatch(self.chain))

    def window(self, size: int, stride: int = 1) -> Pipeline:
        """Return lists of neighbours that overlap; the last whole one ends it.

        Args:
            size: items in a list, at least 1 [items].
            stride: from the beginning of one to that of the next, at least 1 [items].

        Raises:
            ArgumentError: one of them is out of range.
        """
        return self._with(append_window(self.chain, size, stride))

    def shuffle(
        self, *, seed: int = 0, buffer_size: int | None = None, prefetch: int | None = None
    ) -> Pipeline:
        """Change the order of the items, differently in every epoch.

        Args:
            seed: seed of the order.
            buffer_size: None permutes all indices of a source read by index (only `take`,
                `skip`, `enumerate`, `sample`, `balance`, `shard`, `repeat` or `concat` may stand
                between); elsewhere it is needed: items are drawn from a buffer of this many.
            prefetch: with a buffer, items held ready [items]; a live knob.

        Raises:
            ArgumentError: `buffer_size` is needed, or out of range.

        Source: `numpy.random.Generator.permutation`; a Feistel network where a source is very
        long.
        """
        return self._with(append_shuffle(self.chain, seed, buffer_size, prefetch))

    def sample(
        self, weights: Any, *, n: int | None = None, replacement: bool = True, seed: int = 0
    ) -> Pipeline:
        """Draw items by weight, differently in every epoch.

        Like `shuffle` it makes an order of indices of all ranks: `shard` follows. An item that is
        drawn twice gets another `rng` each time.

        Args:
            weights: a number of at least 0 for each item of the order before: a sequence, an
                array or a tensor of shape (items,), on any scale.
            n: how many to draw [items]; as many as there are where not given.
            replacement: an item may be drawn again.
            seed: seed of the draws.

        Raises:
            ArgumentError: weights that are not finite, below 0 or not one for each item; nothing,
                or without replacement less than `n`, to draw; no order of indices before it.
            ArgumentTypeError: no sequence.

        Source: Devroye, "Non-Uniform Random Variate Generation", 1986, III.2; without
        replacement, Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
        """
        options = {"replacement": replacement, "seed": seed}
        return self._with(append_sample(self.chain, weights, n, options))

    def balance(self, labels: Any, *, n: int | None = None, seed: int = 0) -> Pipeline:
        """Draw items so that every label comes equally often, differently in every epoch.

        It is `sample`, with replacement, by one divided by the number of items with the same
        label: each draw takes each label with the same probability, and of its items each with
        the same.

        Args:
            labels: one for each item of the order before: a sequence of what can be hashed, an
                array or a tensor of shape (items,).
            n: how many to draw [items]; as many as there are where not given.
            seed: seed of the draws.

        Raises:
            ArgumentError: not one label for each item, or no order of indices before it.
            ArgumentTypeError: no sequence, or labels that cannot be hashed.
        """
        return self._with(append_balance(self.chain, labels, n, seed))

    def claim(
        self, *, chunk: int = 64, store: Store | None = None, name: str | None = None
    ) -> Pipeline:
        """Take chunks of items as fast as this rank can use them; the other ranks take the rest.

        In place of `shard`, where ranks differ in speed. All ranks draw from one cursor over the
        order before it, so each item goes to exactly one of them in each epoch. Which one is a
        matter of time; the `rng` of an item is not.

        Args:
            chunk: items taken at once [items]; a rank holds at most this many that it has not
                read yet.
            store: what the ranks share: a `torch.distributed.Store`, or anything with a method
                `add(key, amount)` that gives the sum. Where not given, that of the default process
                group, when the epoch starts.
            name: name of the stage. The cursor is named after source and stage: give a name where
                two pipelines of a job claim at the same time.

        Raises:
            ArgumentError: a chunk below 1, or no order of indices of all ranks before it.
        """
        return self._with(append_claim(self.chain, chunk, store, name))

    def shard(
        self, rank: int | None = None, world_size: int | None = None, *, tail: Tail = "pad"
    ) -> Pipeline:
        """Keep every `world_size`-th item, from item `rank` on: one rank's part.

        It splits the order before it, so it follows `shuffle`.

        Args:
            rank: this rank; from `torch.distributed` where it is initialised.
            world_size: number of ranks; likewise.
            tail: where the items do not divide evenly: "pad" repeats the first ones, "drop"
                leaves out the last round, "uneven" leaves ranks with one item less.

        Raises:
            ArgumentError: a rank outside the world, another word for `tail`, or no rank given
                and none known.
        """
        return self._with(append_shard(self.chain, rank, world_size, tail))

    def dedupe(self, key: Callable[[Any], Any] | None = None, last: int = 10_000) -> Pipeline:
        """Leave out each item whose key one of the items just before it had.

        Args:
            key: function that gives what is compared, anything that can be hashed, as an item's
                id; the item itself where not given.
            last: how far to look back [items], dropped ones among them; so many keys are held.
                Where an epoch continues in the middle, so many items are made again for their keys.

        Raises:
            ArgumentError: `last` below 1.
            ArgumentTypeError: `key` cannot be called. A key that cannot be hashed ends the epoch.
        """
        return self._with(append_dedupe(self.chain, key, last))

    def take(self, n: int) -> Pipeline:
        """Keep the first `n` items, at least 0; anything else is an `ArgumentError`."""
        return self._with(append_take(self.chain, n))

    def skip(self, n: int) -> Pipeline:
        """Leave out the first `n` items, at least 0; anything else is an `ArgumentError`."""
        return self._with(append_skip(self.chain, n))

    def repeat(self, n: int | None = None) -> Pipeline:
        """Return all items `n` times, or for ever; every pass shuffles and draws again.

        Args:
            n: passes in an epoch, at least 1; None for an epoch without an end.

        Raises:
            ArgumentError: `n` is out of range.
        """
        return self._with(append_repeat(self.chain, n))

    def enumerate(self) -> Pipeline:
        """Return pairs `(number, item)`; the number counts the items of an epoch from 0."""
        return self._with(append_enumerate(self.chain))

    def cache(self, path: str | os.PathLike[str] | None = None) -> Pipeline:
        """Keep the items of the first whole epoch; later epochs read them instead.

        What comes before runs only once: place random changes after it.

        Args:
            path: folder for the items; None keeps them in memory while the stage lives.

        Raises:
            CacheError: at the start of an epoch, the folder was written by another chain.
        """
        return self._with(append_cache(self.chain, path))

    def route(
        self,
        key: Callable[[Any], Any],
        branches: Mapping[Any, Callable[[Pipeline], Pipeline]],
        *,
        name: str | None = None,
    ) -> Pipeline:
        """Send each item through the chain that `key(item)` chooses; keep the input order.

        A result stands where the item stood at which it came: a batch in the place of its last
        item. What a branch has left at the end comes last, branch by branch.

        Args:
            key: function that gives the value by which branches are chosen.
            branches: for each value a function that adds stages to a chain, as
                `{"jpg": lambda chain: chain.map(decode)}`: `map`, `filter`, `flat_map`, `batch`,
                `unbatch`, `window`, `dedupe` and `route`, in input order. Stages are called
                `decode@jpg`.
            name: name of the stage.

        Raises:
            ArgumentError: no branches, or a branch with another kind of stage. An item with an
                unknown value ends the epoch.
        """
        grown = grown_branches(branches, self._with)
        return self._with(append_route(self.chain, key, grown, name))

    # -- running --------------------------------------------------------------------------
    def start(
        self,
        *,
        seed: int = 0,
        isolate: bool = False,
        memory: int | str | None = None,
        read_ahead: bool = False,
        autotune: bool | Mapping[str, Any] = False,
    ) -> Run:
        """Start a run: it owns its workers until it is closed, epoch after epoch.

        Args:
            seed: seed of every `rng`.
            isolate: have all stages, with their threads, in one process of their own, so that
                the loop keeps the GIL to itself; items, knobs, stats and errors are the same.
                What the stages capture is sent there, now and after a cell changed it.
            memory: budget for what all buffers hold, as "2 GB" or a number of bytes.
            read_ahead: begin the next epoch as soon as the source of one is through, within the
                same limits, so that its first items are there when the loop comes to it. An
                epoch with another number, order or state throws them away. With a `cache` that
                begins once it is complete.
            autotune: turn the knobs by measured gain, as `run.autotune()` does; or a dict of its
                arguments.

        Raises:
            ArgumentError: a seed that is no int, a budget that cannot be read, with `isolate` an
                executor object, which cannot go along, or with `read_ahead` an isolated run or a
                `claim`.
            UnpicklableError: with `isolate`, part of a stage cannot be sent to a process.
        """
        seed = integer("seed", seed, minimum=-(2**63), maximum=2**64)
        budget = None if memory is None else parse_bytes(memory)
        if boolean("read_ahead", read_ahead):
            _check_read_ahead(self.chain, isolate=isolate)
        limits = limits_of(autotune)
        isolate = boolean("isolate", isolate)
        run = self._started(seed, budget, isolate=isolate, read_ahead=read_ahead)
        if limits is not None:
            try:
                run.autotune(*limits)
            except BaseException:
                run.close()
                raise
        return run

    def _started(self, seed: int, budget: int | None, *, isolate: bool, read_ahead: bool) -> Run:
        chain = settled(self.chain, can_be_sent)
        if not isolate:
            return Run(
                chain,
                seed=seed,
                memory_bytes=budget,
                read_ahead=read_ahead,
                pipeline=Pipeline,
            )
        from .run.isolated.isolated_engine import IsolatedEngine

        return Run(
            chain,
            seed=seed,
            memory_bytes=budget,
            engine=IsolatedEngine,
            pipeline=Pipeline,
        )

    def __iter__(self) -> EpochIterator:
        """Run one epoch, number 0; everything is closed after it, also after `break`."""
        return single_epoch(self.start())

    def __len__(self) -> int:
        """Return the number of items of an epoch.

        Raises:
            LengthUnknownError: it is not known before they are made.
        """
        return length(self.chain)

    def __bool__(self) -> bool:
        return True

    def peek(self, n: int = 1, *, lock: bool = False) -> Any:
        """Run until `n` items came out, in this thread; show what each stage gave, and its time.

        Nothing is left running. The time is that of a warm call: where there was but one, one more
        item of a source with an index is run, unless that takes long; else a note says so.

        With `lock=True` it also measures how long the function of each stage in threads holds the
        interpreter lock, and so how many threads can help at most. It runs the first items again,
        up to 1,000, for about 0.5 s for each such stage: every item really goes to your functions,
        several times where there are few. A thread that only asks for the lock runs beside them.
        Where the machine is too busy to tell, there is no figure.

        Args:
            n: how many are to come out, at least 1 [items].
            lock: measure how long each function holds the interpreter lock.

        Returns:
            A `Peek`, which prints as a table, with pictures of images in a notebook; `.items`
            holds the items. With `lock`, a sentence for each function follows, and
            `.stages[...].lock` has its `share` and `threads`.

        Raises:
            ArgumentError: `n` is out of range.
            StageError: a stage failed.

        Examples:
            >>> import time
            >>> pipe = source(range(100)).map(lambda n: time.sleep(0.004), name="read")
            >>> print(pipe.peek(lock=True))  # doctest: +SKIP
            1 item through 2 stages
            stage   operation  items  output  range  per call
            ──────  ─────────  ─────  ──────  ─────  ────────
            source  source     1      int 0          1.2 µs
            read    map        1      None           4.1 ms
            read holds the lock 0.5% of 4.1 ms: many threads help
        """
        from .peek import peek

        n = integer("peek n", n, minimum=1, unit="items")
        return peek(self.chain, n, lock=boolean("peek lock", lock))

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
            self,
            self.chain,
            path,
            items=again,
            overwrite=overwrite,
            check_items=check_items,
            assets=assets,
        )

    def _export_goal_(self) -> str:
        """Return what an export appends to this object's expression to get its pipeline."""
        return ""

    # -- looking in -----------------------------------------------------------------------
    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, those of joined pipelines and branches included."""
        return tuple(addresses(self.chain).values())

    def __getitem__(self, address: str) -> Stage:
        """Return a stage by its name, or by its place and name: `pipe["0/decode"]`.

        Raises:
            UnknownStageError: there is none; the message names those there are.
        """
        return stage_at(addresses(self.chain), address, "pipeline")

    def _ipython_key_completions_(self) -> list[str]:
        return list(addresses(self.chain))

    def graph(self) -> list[dict[str, Any]]:
        """Return the chain as data: for each stage its name, operation, executor and knobs."""
        return graph(self.chain)

    def __repr__(self) -> str:
        return as_text(self.chain)

    def _repr_html_(self) -> str:
        return as_html(self.chain)


def _check_read_ahead(chain: Chain, *, isolate: bool) -> None:
    """Refuse to read ahead where the next epoch cannot begin before this one has ended."""
    if isolate:
        raise ArgumentError(
            "read_ahead must be False with isolate=True: the process of the stages learns of an "
            "epoch when the training loop begins it; leave out one of the two"
        )
    claims = claims_in(chain)
    if claims:
        raise ArgumentError(
            f"read_ahead must be False in a pipeline that claims, got {claims[0]!r}: what is "
            "claimed for an epoch that never begins is lost to all ranks; use shard, or leave "
            "read_ahead out"
        )


# -- source(): the beginning of every pipeline -----------------------------------------------------
SOURCE_PREFETCH = 16


@names_arguments
def source(items: Any, *, name: str = "source", prefetch: int = SOURCE_PREFETCH) -> Pipeline:
    """Begin a pipeline.

    Args:
        items: a sequence or a map-style torch `Dataset` (read by index, one after the other; to
            read by index in parallel, give `range(len(dataset))` and map
            `dataset.__getitem__`), any object that can be iterated again and again, a torch
            `Sampler` or `IterableDataset`, a function without arguments that returns a fresh
            iterator, an async generator function, or another `Pipeline`. An object with a
            method `set_epoch` gets the number of every epoch.
        name: name of the stage.
        prefetch: items read ahead [items], 1 to 65,536; a live knob.

    Raises:
        ArgumentError: more than 2**62 items by index.
        ArgumentTypeError: a generator object, a str, a mapping, a DataFrame, a set, a run, or
            an object that cannot be iterated; the message gives the way out.
    """
    check_name("source", name)
    inputs: tuple[Chain, ...] = ()
    if isinstance(items, Pipeline):
        spec, inputs = Source(items=None), (items.chain,)
    elif isinstance(items, ShownRun):  # read by index it would give its stages
        raise ArgumentTypeError(
            f"source must be a pipeline or a collection of items, got a {type(items).__name__}; "
            "give the pipeline that it was started from, or the DataLoader that it is of"
        )
    else:
        spec = source_of(items)
    words = frozenset() if prefetch == SOURCE_PREFETCH else frozenset({"prefetch"})
    stage = functools.partial(Stage, spec, inputs=inputs, unit=joined_unit(inputs), given=words)
    return Pipeline((stage(name=name, named=True, prefetch=prefetch),))


# -- zip, concat, mix, interleave: several pipelines become one ------------------------------------
PREFETCH = 8


@names_arguments
def zip(*pipes: Pipeline, strict: bool = True) -> Pipeline:  # noqa: A001  the field's word
    """Join pipelines item by item: tuples of one item from each.

    Args:
        pipes: at least one pipeline.
        strict: raise when one ends before the others; False stops at the shortest.

    Raises:
        ArgumentError: none given.
        ArgumentTypeError: something else than pipelines.
    """
    return _joined(Zip(strict=boolean("zip strict", strict)), _checked("zip", pipes))


@names_arguments
def concat(*pipes: Pipeline) -> Pipeline:
    """Return the items of one pipeline after those of the other.

    Where all of them are sources read by index, a full `shuffle()` may follow.

    Args:
        pipes: at least one pipeline.

    Raises:
        ArgumentError: none given.
        ArgumentTypeError: something else than pipelines.
    """
    return _joined(Concat(), _checked("concat", pipes))


@names_arguments
def mix(
    pipes: Sequence[Pipeline],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    stop: Literal["longest", "shortest"] = "longest",
) -> Pipeline:
    """Draw each item from one of several pipelines, by weight; deterministic for a seed.

    Args:
        pipes: at least one pipeline.
        weights: one number above 0 for each; equal where not given.
        seed: seed of the draws.
        stop: "longest": pipelines that end drop out, until none is left; "shortest": end when
            a pipeline that is drawn has ended.

    Raises:
        ArgumentError: weights that do not fit, or another word for `stop`.
        ArgumentTypeError: something else than a sequence of pipelines.
    """
    given = _several("mix", pipes)
    if stop not in ("longest", "shortest"):
        raise ArgumentError(f"mix stop must be 'longest' or 'shortest', got {stop!r}")
    seed = integer("mix seed", seed, minimum=-(2**63), maximum=2**64)
    return _joined(Mix(weights=mix_weights(weights, len(given)), seed=seed, stop=stop), given)


@names_arguments
def interleave(pipes: Sequence[Pipeline], cycle: int = 4, *, prefetch: int = PREFETCH) -> Pipeline:
    """Take turns between pipelines, `cycle` of them open at once.

    A pipeline that ends gives its turn to the next one that was not opened yet, as tf.data's
    interleave does with a block length of 1.

    Args:
        pipes: at least one pipeline.
        cycle: pipelines open at once, at least 1.
        prefetch: items held ready [items]; a live knob.

    Raises:
        ArgumentError: none given, or a `cycle` below 1.
        ArgumentTypeError: something else than a sequence of pipelines.
        KnobError: `prefetch` out of range.
    """
    cycle = integer("interleave cycle", cycle, minimum=1, unit="pipelines")
    return _joined(Interleave(cycle=cycle), _several("interleave", pipes), prefetch=prefetch)


def _joined(spec: Operation, pipes: Sequence[Pipeline], prefetch: int | None = None) -> Pipeline:
    inputs = tuple(pipe.chain for pipe in pipes)
    words = frozenset() if prefetch in (None, PREFETCH) else frozenset({"prefetch"})
    stage = functools.partial(Stage, spec, inputs=inputs, unit=joined_unit(inputs), given=words)
    return Pipeline((stage(name=spec.label, prefetch=prefetch),))


def _several(word: str, pipes: object) -> Sequence[Pipeline]:
    """Check the sequence of pipelines that `mix` or `interleave` was given."""
    if isinstance(pipes, str) or not isinstance(pipes, Sequence):
        raise ArgumentTypeError(
            f"{word} must be given a sequence of pipelines, got {type(pipes).__name__}; "
            f"as {word}([one, other])"
        )
    return _checked(word, pipes)


def _checked(word: str, pipes: Sequence[Any]) -> Sequence[Pipeline]:
    if not pipes:
        raise ArgumentError(f"{word} must be given at least one pipeline, got none")
    for pipe in pipes:
        if isinstance(pipe, list | tuple):
            raise ArgumentTypeError(
                f"{word} must be given pipelines one by one, got a {type(pipe).__name__}; "
                f"write {word}(*pipes)"
            )
        if not isinstance(pipe, Pipeline):
            raise ArgumentTypeError(
                f"{word} must be given pipelines, got {type(pipe).__name__}; "
                "wrap it: nbpipe.source(...)"
            )
    return pipes
