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
from .run.core import RunCore
from .run.iterator import EpochIterator
from .run.run import Run, single_epoch
from .run.shown import ShownRun
from .tune.limits import limits_of

if TYPE_CHECKING:
    from .export.store import Exported


@final
@own("pipeline")
@methods_name_arguments
class Pipeline:
    """A frozen chain of stages. Begin one with `nbpipe.source(...)`.

    Every method returns a new pipeline. Pipelines made from one another share their stages, and
    so their knobs.

    Attributes:
        chain: the stages.

    Examples:
        >>> import nbpipe
        >>> pipe = nbpipe.source(range(5)).map(lambda n: n * n, name="square").batch(2)
        >>> for batch in pipe:
        ...     print(batch)
        [0 1]
        [4 9]
        [16]
        >>> pipe["square"].concurrency = 4  # a knob: set it at any moment
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
            fn: a function of one item. An `async def` runs on the run's event loop. A parameter
                named `rng` receives a `numpy.random.Generator` that depends only on the run's seed,
                the epoch, the stage's name and the item's position.
            name: the stage's name; by default the function's.
            executor: where calls run. "thread" (the default): in threads of the run. "process": in
                worker processes, which start with the first item. "inline": in the stage before,
                without a queue or knobs. "dask", a Dask client or a `DaskExecutor`: on a cluster.
                Any `concurrent.futures.Executor`: in that. Neighbouring stages in workers share
                them and their concurrency: one worker takes an item through all of these stages.
            concurrency: calls in progress at once [calls], 1 to 1,024, in processes 1 to 256; a
                live knob. Default: 1, or the value of the workers that it shares.
            prefetch: results held ready beyond one for each running call [items], 1 to 65,536; a
                live knob. Default: 8, and 2 from the first batch on.
            ordered: keep the input order. False delivers results as they complete; not possible on
                a device, nor before a stage that needs the order to resume (`dedupe`, `window`,
                `batch(cost=)`, stages that take batches apart).
            on_error: "raise" ends the epoch with a `StageError`, after all earlier items;
                "skip" drops the item; `Retry(times)` calls again.
            max_failures: with skipping, how many items of an epoch may fail: an int is a count, a
                float between 0 and 1 a share, checked after 100 items and at the end.
            timeout_s: longest time of one call [s], for an `async def` and in workers. A worker
                process that takes longer is killed. In another executor the call continues, and its
                item counts as failed.
            worker_init: function called once in each worker, before its first item.
            max_items_per_worker: replace a worker process after this many items [items].
            copy: copy results out of the memory shared with worker processes if many are kept.
                False gives views; each holds its part of that memory until you drop it.
            region: False keeps the stage apart from its neighbours, in workers of its own.
            device: call `fn` on the run's stream of this device, for example "cuda": on the batches
                that `to_device` gave, one at a time, in order.
            depth: with `device`, batches held ready on it [batches], 1 to 16; a live knob. Default:
                2, or the value of the neighbours on the device.

        Returns:
            A new pipeline that ends with this stage.

        Raises:
            ArgumentError: a value is out of range, or arguments exclude one another.
            ArgumentTypeError: `fn` cannot be called.
            KnobError: a knob is out of range.
            DuplicateNameError: the chain has a stage of this name.

        Examples:
            >>> import nbpipe
            >>> def jitter(n, rng):
            ...     return n + rng.integers(10)
            >>> pipe = nbpipe.source([100, 200]).map(jitter, concurrency=4)
            >>> list(pipe) == list(pipe)  # the same seed and epoch give the same numbers
            True
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
        """Keep the items for which `fn` returns something true.

        Args:
            fn: a function of one item, as for `map`.
            name: as for `map`, like all further arguments.
            executor: where calls run.
            concurrency: calls in progress at once [calls]; a live knob.
            prefetch: results held ready [items]; a live knob.
            ordered: keep the input order.
            on_error: "raise", "skip" or `Retry(times)`.
            max_failures: how many items of an epoch may fail.
            timeout_s: longest time of one call [s].
            worker_init: function called once in each worker.
            max_items_per_worker: replace a worker process after this many items [items].
            copy: copy results out of shared memory.
            region: False keeps the stage apart from its neighbours.

        Returns:
            A new pipeline that ends with this stage. Its length is not known.

        Raises:
            ArgumentError, ArgumentTypeError, KnobError, DuplicateNameError: as for `map`.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(range(6)).filter(lambda n: n % 2 == 0))
            [0, 2, 4]
        """
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
        """Call `fn` on every item, and pass on each item that it returns or yields.

        What a generator yields is passed on immediately; it waits when there is no room. A retry
        calls `fn` again and drops the items that the failed call already gave.

        Args:
            fn: a function of one item that returns an iterable, a generator, or an async generator.
            name: as for `map`, like all further arguments.
            executor: where calls run.
            concurrency: calls in progress at once [calls]; a live knob.
            prefetch: results held ready [items]; a live knob.
            ordered: keep the input order.
            on_error: "raise", "skip" or `Retry(times)`.
            max_failures: how many items of an epoch may fail.
            timeout_s: longest time of one call [s].
            worker_init: function called once in each worker.
            max_items_per_worker: replace a worker process after this many items [items].
            copy: copy results out of shared memory.
            region: False keeps the stage apart from its neighbours.

        Returns:
            A new pipeline that ends with this stage. Its length is not known.

        Raises:
            ArgumentError, ArgumentTypeError, KnobError, DuplicateNameError: as for `map`.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(["ab", "c"]).flat_map(list))
            ['a', 'b', 'c']
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
        """Stack items into batches: arrays of shape (H, W, C) become one array (B, H, W, C).

        Args:
            size: items in a batch [items], at least 1. With `cost`, the most that the costs of a
                batch's items may sum to.
            drop_last: leave out a last batch that is not full.
            collate: function of a list of items that makes the batch. None stacks arrays and
                tensors, through dicts, tuples, lists and dataclasses. Numbers become an array;
                beside tensors, a tensor.
            names: names for the fields of tuples; the batch is then a dict.
            dtype: type that floating-point arrays and tensors are cast to.
            pad: value that fills ragged dimensions up to the longest item.
            cost: function that returns an item's share of `size`, for example tokens or pixels. A
                cost below 0 or above `size` ends the epoch.
            executor: where batches are made, as for `map`. None makes them in the worker processes
                of the `map` stages before, if those drop no items and each worker gets at least
                four batches; otherwise in a thread, one at a time. "thread" always makes them in
                threads.
            concurrency: in workers, batches made at once [calls]; by default the value of the
                stages before that share these workers.
            prefetch: batches held ready [batches]; a live knob.
            name: the stage's name.

        Returns:
            A new pipeline of batches.

        Raises:
            ArgumentError: `size` is below 1, or arguments exclude one another.

        Examples:
            >>> import nbpipe
            >>> import numpy as np
            >>> images = nbpipe.source(range(5)).map(lambda n: np.full((4, 6, 3), n))
            >>> [batch_BHWC.shape for batch_BHWC in images.batch(2)]
            [(2, 4, 6, 3), (2, 4, 6, 3), (1, 4, 6, 3)]
            >>> pairs = nbpipe.source([(1, 0.5), (2, 1.5)]).batch(2, names=("input", "target"))
            >>> list(pairs)
            [{'input': array([1, 2]), 'target': array([0.5, 1.5])}]
        """
        options = {"drop_last": drop_last, "collate": collate, "names": names, "dtype": dtype}
        options |= {"pad": pad, "cost": cost, "executor": executor, "concurrency": concurrency}
        return self._with(append_batch(self.chain, size, options, name, prefetch))

    def to_device(self, device: object, *, depth: int = 2, stream: object = None) -> Pipeline:
        """Copy each batch to a device, on a stream of its own, while the training loop computes.

        Tensors in dicts, lists, tuples, named tuples and dataclasses are copied. Arrays of numbers
        become tensors. Objects with a method `to` are moved by it. Other values stay as they are.

        Device stages run one call at a time, in order. The training loop's stream waits for a
        batch; its thread does not. If you read a batch on more than one stream, call
        `record_stream`.

        Args:
            device: torch device: "cuda", "cuda:1" or "cpu". "cpu" copies device tensors back and
                leaves host data as it is.
            depth: batches held ready on the device [batches], 1 to 16; a live knob. The loop's
                thread may be as many batches ahead of its stream. Device memory holds about
                2 * depth + 4 batches and those that the loop keeps; pinned memory holds as much,
                and torch rounds each block up to a power of two.
            stream: a stream of that device, in place of the run's own.

        Returns:
            A new pipeline of batches on `device`. Shape and dtype stay: (B, C, H, W) float32
            remains (B, C, H, W) float32.

        Raises:
            ArgumentError: `device` is not a device's name or `depth` is out of range; when a run
                starts: this machine has no such device.
            MissingExtraError: when a run starts: torch is not installed.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(8)).batch(4).to_device("cuda", depth=3)
            >>> pipe["to_device"].depth
            3

        Source: PyTorch "CUDA semantics", asynchronous copies.
        """
        return self._with(append_to_device(self.chain, device, depth, stream))

    def unbatch(self) -> Pipeline:
        """Take batches apart: (B, H, W, C) gives B items (H, W, C); a list gives its elements.

        Returns:
            A new pipeline of items. Its length is not known.

        Examples:
            >>> import nbpipe
            >>> [int(n) for n in nbpipe.source(range(4)).batch(3).unbatch()]
            [0, 1, 2, 3]
        """
        return self._with(append_unbatch(self.chain))

    def window(self, size: int, stride: int = 1) -> Pipeline:
        """Return lists of neighbouring items that overlap; the last full list ends the epoch.

        Args:
            size: items in a list [items], at least 1.
            stride: distance between the starts of two lists [items], at least 1.

        Returns:
            A new pipeline of lists.

        Raises:
            ArgumentError: a value is out of range.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(range(5)).window(3, stride=2))
            [[0, 1, 2], [2, 3, 4]]
        """
        return self._with(append_window(self.chain, size, stride))

    def shuffle(
        self, *, seed: int = 0, buffer_size: int | None = None, prefetch: int | None = None
    ) -> Pipeline:
        """Shuffle the items; every epoch has another order.

        Args:
            seed: seed of the order.
            buffer_size: None draws a full permutation. That needs a source read by index; only
                `take`, `skip`, `enumerate`, `sample`, `balance`, `shard`, `repeat` and `concat` may
                stand between. Elsewhere, give the size of a buffer that items are drawn from
                [items].
            prefetch: with a buffer, items held ready [items]; a live knob.

        Returns:
            A new pipeline of the same items.

        Raises:
            ArgumentError: `buffer_size` is needed, or out of range.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).shuffle(seed=0).start() as run:
            ...     first, second = list(run), list(run)
            >>> sorted(first) == sorted(second), first == second
            (True, False)

        Source: `numpy.random.Generator.permutation`; for very long sources a Feistel network.
        """
        return self._with(append_shuffle(self.chain, seed, buffer_size, prefetch))

    def sample(
        self, weights: Any, *, n: int | None = None, replacement: bool = True, seed: int = 0
    ) -> Pipeline:
        """Draw items by weight; every epoch has other draws.

        Like `shuffle`, it orders the indices of all ranks, so `shard` comes after it. An item that
        is drawn twice gets another `rng` each time.

        Args:
            weights: a number of at least 0 for each item: a sequence, an array or a tensor of shape
                (items,), on any scale.
            n: number of draws [items]; by default the number of items.
            replacement: an item may be drawn again.
            seed: seed of the draws.

        Returns:
            A new pipeline of `n` items.

        Raises:
            ArgumentError: weights that are not finite, below 0, or not one for each item; nothing
                to draw, or too few items without replacement; the items before have no index.
            ArgumentTypeError: `weights` is not a sequence.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(["rare", "never"]).sample([1, 0], n=3))
            ['rare', 'rare', 'rare']

        Source: Devroye, "Non-Uniform Random Variate Generation", 1986, III.2; without
        replacement, Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
        """
        options = {"replacement": replacement, "seed": seed}
        return self._with(append_sample(self.chain, weights, n, options))

    def balance(self, labels: Any, *, n: int | None = None, seed: int = 0) -> Pipeline:
        """Draw items so that every label comes equally often; every epoch has other draws.

        It is `sample` with replacement, where an item's weight is one divided by the number of
        items with its label.

        Args:
            labels: one for each item: a sequence of hashable values, or an array or a tensor of
                shape (items,).
            n: number of draws [items]; by default the number of items.
            seed: seed of the draws.

        Returns:
            A new pipeline of `n` items.

        Raises:
            ArgumentError: not one label for each item, or the items before have no index.
            ArgumentTypeError: `labels` is not a sequence, or a label cannot be hashed.

        Examples:
            >>> import nbpipe
            >>> labels = ["cat"] * 90 + ["dog"] * 10
            >>> drawn = list(nbpipe.source(labels).balance(labels, n=1000))
            >>> 400 < drawn.count("dog") < 600
            True
        """
        return self._with(append_balance(self.chain, labels, n, seed))

    def claim(
        self, *, chunk: int = 64, store: Store | None = None, name: str | None = None
    ) -> Pipeline:
        """Take chunks of items as fast as this rank uses them; the other ranks take the rest.

        Use it in place of `shard` if ranks differ in speed. All ranks draw from one cursor over the
        order before it, so in each epoch every item goes to exactly one rank. Which rank depends on
        timing; an item's `rng` does not.

        Args:
            chunk: items taken at once [items]; a rank holds at most this many unread ones.
            store: what the ranks share: a `torch.distributed.Store`, or an object with
                `add(key, amount)` that returns the sum. By default the store of the default process
                group, when the epoch starts.
            name: the stage's name. The cursor is named after source and stage: give a name if two
                pipelines of a job claim at the same time.

        Returns:
            A new pipeline of this rank's items.

        Raises:
            ArgumentError: `chunk` is below 1, or the items before have no index of all ranks.

        Examples:
            >>> import nbpipe
            >>> store = nbpipe.ranks.LocalStore()  # in a job of several ranks: leave it out
            >>> list(nbpipe.source(range(5)).claim(chunk=2, store=store))
            [0, 1, 2, 3, 4]
        """
        return self._with(append_claim(self.chain, chunk, store, name))

    def shard(
        self, rank: int | None = None, world_size: int | None = None, *, tail: Tail = "pad"
    ) -> Pipeline:
        """Keep this rank's part: every `world_size`-th item, beginning with item `rank`.

        It splits the order before it, so it comes after `shuffle`.

        Args:
            rank: this rank; by default from `torch.distributed`, if that is initialised.
            world_size: number of ranks; likewise.
            tail: what happens to items that do not divide evenly: "pad" repeats the first ones,
                "drop" leaves out the last round, "uneven" leaves some ranks one item short.

        Returns:
            A new pipeline of this rank's items.

        Raises:
            ArgumentError: `rank` is outside the world, `tail` is another word, or no rank is given
                and none is known.

        Examples:
            >>> import nbpipe
            >>> [list(nbpipe.source(range(5)).shard(rank, 2)) for rank in range(2)]
            [[0, 2, 4], [1, 3, 0]]
        """
        return self._with(append_shard(self.chain, rank, world_size, tail))

    def dedupe(self, key: Callable[[Any], Any] | None = None, last: int = 10_000) -> Pipeline:
        """Drop each item whose key equals that of a recent item.

        Args:
            key: function that returns a hashable key, for example an item's id; by default the item
                is its own key.
            last: how many items to look back [items], dropped ones included; as many keys are held.
                To resume in mid-epoch, as many items are made again for their keys.

        Returns:
            A new pipeline. Its length is not known.

        Raises:
            ArgumentError: `last` is below 1.
            ArgumentTypeError: `key` cannot be called. A key that cannot be hashed ends the epoch.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(["a.jpg", "b.jpg", "a.jpg"]).dedupe())
            ['a.jpg', 'b.jpg']
        """
        return self._with(append_dedupe(self.chain, key, last))

    def take(self, n: int) -> Pipeline:
        """Keep the first `n` items.

        Args:
            n: number of items [items], at least 0.

        Returns:
            A new pipeline of at most `n` items.

        Raises:
            ArgumentError: `n` is out of range.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(range(100)).take(3))
            [0, 1, 2]
        """
        return self._with(append_take(self.chain, n))

    def skip(self, n: int) -> Pipeline:
        """Leave out the first `n` items.

        Args:
            n: number of items [items], at least 0.

        Returns:
            A new pipeline without them.

        Raises:
            ArgumentError: `n` is out of range.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(range(5)).skip(3))
            [3, 4]
        """
        return self._with(append_skip(self.chain, n))

    def repeat(self, n: int | None = None) -> Pipeline:
        """Repeat all items `n` times in one epoch; every pass shuffles and draws again.

        Args:
            n: passes in an epoch [passes], at least 1; None never ends.

        Returns:
            A new pipeline.

        Raises:
            ArgumentError: `n` is out of range.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(["a", "b"]).repeat(2))
            ['a', 'b', 'a', 'b']
        """
        return self._with(append_repeat(self.chain, n))

    def enumerate(self) -> Pipeline:
        """Return pairs `(number, item)`; numbers count the items of an epoch from 0.

        Returns:
            A new pipeline of tuples.

        Examples:
            >>> import nbpipe
            >>> list(nbpipe.source(["a.jpg", "b.jpg"]).enumerate())
            [(0, 'a.jpg'), (1, 'b.jpg')]
        """
        return self._with(append_enumerate(self.chain))

    def cache(self, path: str | os.PathLike[str] | None = None) -> Pipeline:
        """Keep the items of the first complete epoch; later epochs read them back.

        The stages before it run only once, so put random changes after it.

        Args:
            path: folder for the items; None keeps them in memory as long as the stage exists.

        Returns:
            A new pipeline of the same items.

        Raises:
            CacheError: when an epoch starts: another chain wrote this folder.

        Examples:
            >>> import nbpipe
            >>> calls = []
            >>> with nbpipe.source(range(2)).map(calls.append, name="read").cache().start() as run:
            ...     epochs = [list(run) for _ in range(3)]
            >>> calls  # three epochs, one call for each item
            [0, 1]
        """
        return self._with(append_cache(self.chain, path))

    def route(
        self,
        key: Callable[[Any], Any],
        branches: Mapping[Any, Callable[[Pipeline], Pipeline]],
        *,
        name: str | None = None,
    ) -> Pipeline:
        """Send each item through a chain that its key chooses; keep the input order.

        Each result takes the position of the item that completed it: a batch that of its last item.
        What the branches hold at the end comes last, branch by branch.

        Args:
            key: function of an item that returns the value by which a branch is chosen.
            branches: for each value, a function that adds stages to a chain, for example
                `{"jpg": lambda chain: chain.map(decode)}`. Allowed are `map`, `filter`, `flat_map`,
                `batch`, `unbatch`, `window`, `dedupe` and `route`, in input order. Their stages are
                named `decode@jpg`.
            name: the stage's name.

        Returns:
            A new pipeline of the results of all branches.

        Raises:
            ArgumentError: no branches, or a branch with another kind of stage. An item with an
                unknown value ends the epoch.

        Examples:
            >>> import nbpipe
            >>> def half(n):
            ...     return n // 2
            >>> numbers = nbpipe.source([1, 2, 3, 4])
            >>> branches = {0: lambda chain: chain.map(half), 1: lambda chain: chain}
            >>> list(numbers.route(lambda n: n % 2, branches))
            [1, 1, 3, 2]
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
        """Start a run. It owns its workers until it closes, epoch after epoch.

        Args:
            seed: seed of every `rng`.
            isolate: run all stages and their threads in one process of their own, so that the
                training loop has the interpreter lock for itself. Items, knobs, stats and errors
                stay the same. Objects that the stages use are sent to that process, now and again
                after a cell changed them.
            memory: limit for the bytes in all buffers: "2 GB", or a number of bytes [bytes].
            read_ahead: begin the next epoch while this one drains, within the same limits, so that
                its first items are ready. An epoch with another number, order or state drops them.
                With a `cache`, reading ahead begins once that is complete.
            autotune: turn the knobs by measured gain, as `run.autotune()` does; or a dict of its
                arguments.

        Returns:
            The run: iterate it for the items.

        Raises:
            ArgumentError: `seed` is not an int, or `memory` cannot be read; with `isolate`, a stage
                has an executor object; with `read_ahead`, the run is isolated or has a `claim`.
            UnpicklableError: with `isolate`, part of a stage cannot be sent to a process.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(3)).start() as run:
            ...     for epoch in range(2):
            ...         print(list(run))
            [0, 1, 2]
            [0, 1, 2]
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
            core = RunCore(
                chain,
                seed=seed,
                memory_bytes=budget,
                read_ahead=read_ahead,
                pipeline=Pipeline,
            )
            return Run(core)
        from .run.isolated.isolated_engine import IsolatedEngine

        return Run(
            RunCore(
                chain,
                seed=seed,
                memory_bytes=budget,
                engine=IsolatedEngine,
                pipeline=Pipeline,
            )
        )

    def __iter__(self) -> EpochIterator:
        """Run one epoch, number 0, and close everything after it, also after `break`."""
        return single_epoch(self.start())

    def __len__(self) -> int:
        """Return the number of items of an epoch.

        Raises:
            LengthUnknownError: the number is not known before the items are made.
        """
        return length(self.chain)

    def __bool__(self) -> bool:
        return True

    def peek(self, n: int = 1, *, lock: bool = False) -> Any:
        """Run `n` items through in this thread; show each stage's output and time.

        Nothing is left running. The time is that of a warm call; if there is only one call, a
        source with an index gives another item for it, unless that takes long. A note names a cold
        time.

        With `lock=True` it also measures how long the function of each threaded stage holds the
        interpreter lock, and so how many threads can help. It runs the first items again, up to
        1,000, for about 0.5 s a stage: your functions are called that often. On a machine too busy
        to measure there is no figure.

        Args:
            n: items to let through [items], at least 1.
            lock: measure how long each function holds the interpreter lock.

        Returns:
            A `Peek`: prints as a table, in a notebook with thumbnails of images; `.items` has the
            items. With `lock`, it has a sentence for each function, and `.stages[...].lock` has
            `share` and `threads`.

        Raises:
            ArgumentError: `n` is out of range.
            StageError: a stage failed.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(100)).map(lambda n: n * n, name="square")
            >>> pipe.peek(3).items
            (0, 1, 4)
            >>> print(pipe.peek())
            1 item through 2 stages
            stage   operation  items  output  range  per call
            ...
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
        """Write a module of plain Python that builds this pipeline with the knobs' present values.

        The module contains what the stages use, as you wrote it. Before anything is written, a new
        process imports the module and compares its first items with this pipeline's.

        Args:
            path: the file, for example "loader.py", in a folder that exists.
            overwrite: replace a file that you edited, or that `export` did not write.
            check_items: first items to compare [items]; 0 compares none.
            assets: "npz" saves arrays of more than 64 elements beside the module.

        Returns:
            What was written: `.path`, `.compared` and `.notes`.

        Raises:
            ArgumentError: no module can be imported from this path.
            ExportError: something cannot be written; the message names it, its use and the fix.

        Examples:
            In a notebook or a script::

                import nbpipe

                pipe = nbpipe.source(range(8)).map(abs, concurrency=4).batch(4)
                pipe.export("loader.py")
                for batch in nbpipe.load("loader.py"):
                    print(batch)
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
        """The stages, including those of joined pipelines and of branches."""
        return tuple(addresses(self.chain).values())

    def __getitem__(self, address: str) -> Stage:
        """Return a stage by its name, or by its pipeline's position and name: `pipe["0/decode"]`.

        Raises:
            UnknownStageError: there is none; the message names the stages that exist.
        """
        return stage_at(addresses(self.chain), address, "pipeline")

    def _ipython_key_completions_(self) -> list[str]:
        return list(addresses(self.chain))

    def graph(self) -> list[dict[str, Any]]:
        """Return the chain as data.

        Returns:
            For each stage a dict with its name, operation, executor and knobs.

        Examples:
            >>> import nbpipe
            >>> for stage in nbpipe.source(range(3)).map(abs).graph():
            ...     print(stage["name"], stage["op"], stage["knobs"])
            source source {'prefetch': 16}
            abs map {'concurrency': 1, 'prefetch': 8}
        """
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
        items: what to read. By index, one item at a time: a sequence or a map-style torch
            `Dataset` (to read in parallel, give `range(len(dataset))` and map
            `dataset.__getitem__`). In their order: an object that can be iterated again and
            again, a torch `Sampler` or `IterableDataset`, a function without arguments that
            returns a new iterator, an async generator function, or another `Pipeline`. If the
            object has `set_epoch`, it is called with the epoch number.
        name: the stage's name.
        prefetch: items read ahead [items], 1 to 65,536; a live knob.

    Returns:
        A pipeline of one stage.

    Raises:
        ArgumentError: more than 2**62 items by index.
        ArgumentTypeError: a generator object, a str, a mapping, a DataFrame, a set, a run, or an
            object that cannot be iterated; the message gives the fix.

    Examples:
        >>> import nbpipe
        >>> list(nbpipe.source(["a.jpg", "b.jpg"], name="files"))
        ['a.jpg', 'b.jpg']
        >>> def lines():
        ...     yield from ("first", "second")
        >>> list(nbpipe.source(lines))  # the function, so that each epoch begins again
        ['first', 'second']
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
        strict: raise when one pipeline ends before the others; False stops at the shortest.

    Returns:
        A pipeline of tuples.

    Raises:
        ArgumentError: no pipeline is given.
        ArgumentTypeError: an argument is not a pipeline.

    Examples:
        >>> import nbpipe
        >>> images, labels = nbpipe.source(["a.jpg", "b.jpg"]), nbpipe.source([0, 1])
        >>> list(nbpipe.zip(images, labels))
        [('a.jpg', 0), ('b.jpg', 1)]
    """
    return _joined(Zip(strict=boolean("zip strict", strict)), _checked("zip", pipes))


@names_arguments
def concat(*pipes: Pipeline) -> Pipeline:
    """Chain pipelines: all items of the first, then those of the next.

    If all of them are sources read by index, a full `shuffle()` may follow.

    Args:
        pipes: at least one pipeline.

    Returns:
        A pipeline of all items.

    Raises:
        ArgumentError: no pipeline is given.
        ArgumentTypeError: an argument is not a pipeline.

    Examples:
        >>> import nbpipe
        >>> list(nbpipe.concat(nbpipe.source([1, 2]), nbpipe.source([3])))
        [1, 2, 3]
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
    """Draw each item from one of several pipelines, by weight; the same seed draws the same.

    Args:
        pipes: at least one pipeline.
        weights: a number above 0 for each; equal by default.
        seed: seed of the draws.
        stop: "longest" continues with the others when a pipeline ends; "shortest" ends when a
            pipeline that is drawn has ended.

    Returns:
        A pipeline of items of all of them.

    Raises:
        ArgumentError: weights that do not fit, or another word for `stop`.
        ArgumentTypeError: not a sequence of pipelines.

    Examples:
        >>> import nbpipe
        >>> web, books = nbpipe.source(["web"] * 4), nbpipe.source(["book"] * 2)
        >>> list(nbpipe.mix([web, books], weights=[2, 1]))
        ['book', 'web', 'web', 'book', 'web', 'web']
    """
    given = _several("mix", pipes)
    if stop not in ("longest", "shortest"):
        raise ArgumentError(f"mix stop must be 'longest' or 'shortest', got {stop!r}")
    seed = integer("mix seed", seed, minimum=-(2**63), maximum=2**64)
    return _joined(Mix(weights=mix_weights(weights, len(given)), seed=seed, stop=stop), given)


@names_arguments
def interleave(pipes: Sequence[Pipeline], cycle: int = 4, *, prefetch: int = PREFETCH) -> Pipeline:
    """Take turns between pipelines, with `cycle` of them open at once.

    When a pipeline ends, the next unopened one takes its turn. tf.data's interleave does the same
    with a block length of 1.

    Args:
        pipes: at least one pipeline.
        cycle: pipelines open at once [pipelines], at least 1.
        prefetch: items held ready [items]; a live knob.

    Returns:
        A pipeline of all items.

    Raises:
        ArgumentError: no pipeline is given, or `cycle` is below 1.
        ArgumentTypeError: not a sequence of pipelines.
        KnobError: `prefetch` is out of range.

    Examples:
        >>> import nbpipe
        >>> shards = [nbpipe.source(["a1", "a2"]), nbpipe.source(["b1", "b2"])]
        >>> list(nbpipe.interleave(shards, cycle=2))
        ['a1', 'b1', 'a2', 'b2']
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
            f"for example {word}([one, other])"
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
