"""Ranks: what the processes of one training job share."""

from __future__ import annotations

from typing import Any, Protocol

from .errors import ArgumentError, MissingExtraError
from .ops.index import LocalStore, Store

__all__ = ["LocalStore", "Store", "gather_states"]


class Stateful(Protocol):
    """A run, as far as its state goes."""

    def state_dict(self) -> dict[str, Any]:
        """Return where it is."""


def gather_states(run: Stateful, *, group: Any = None) -> list[dict[str, Any]]:
    """Collect the states of all ranks. Every rank calls this, at the same step.

    Save the list once, and give it to `run.load_state_dict` on every rank of a job of any size:
    each remaining item goes to exactly one rank.

    Args:
        run: this rank's run, or another object with `state_dict`.
        group: the process group; by default torch's default group.

    Returns:
        One state for each rank, in the order of ranks; the same list on every rank.

    Raises:
        MissingExtraError: torch is not installed.
        ArgumentError: `torch.distributed` is not initialised.

    Examples:
        In a job that torchrun started::

            states = nbpipe.ranks.gather_states(run)
            if torch.distributed.get_rank() == 0:
                torch.save(states, "states.pt")

        >>> import nbpipe
        >>> with nbpipe.source(range(3)).start() as run:
        ...     nbpipe.ranks.gather_states(run)  # no job
        Traceback (most recent call last):
        nbpipe.errors.ArgumentError: gather_states needs a process group; ...
    """
    try:
        from torch import distributed
    except ImportError as error:
        raise MissingExtraError.of("torch", "torch", "gather_states") from error
    if not distributed.is_available() or not distributed.is_initialized():
        raise ArgumentError(
            "gather_states needs a process group; call torch.distributed.init_process_group "
            "first, or with one rank save [run.state_dict()]"
        )
    states: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(states, run.state_dict(), group=group)
    return states


def __dir__() -> list[str]:
    return __all__
