"""LoaderStanding: what a `DataLoader` tells of its place in its epochs, and takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from .loader_arguments import Samples
from .loader_draws import Draws
from .loader_epoch import CLOSE_S, Team, close_run
from .loader_places import Places
from .loader_state import Mark, check_reading


class Standing(ABC):
    """Where a loader stands; `DataLoader` adds what makes batches."""

    generator: Any
    in_order: bool
    persistent_workers: bool
    _torch: Any
    _samples: Samples
    _places: Places
    _reads: bool
    _splits: bool
    _team: Team | None

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Batches made at once [calls]."""

    def state_dict(self) -> dict[str, Any]:
        """Say where the loader stands, for `load_state_dict` of a loader of the same data.

        Behind the last batch that was handed out by the newest iterator; once that has come to
        its end, or before the first, at the beginning of the next epoch. Nothing stops or waits.

        Returns:
            Numbers and text, ready for `json` or `torch.save`; the own states of samplers and
            datasets that have `state_dict` are in it as they are.

        Raises:
            StateError: the workers died, and nobody can say how far they had come.
        """
        return self._places.state_dict(self._draws, workers=self.num_workers, stays=self._stays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iterator gives the rest of its epoch.

        Workers, prefetch and executor may be others than before. Torch's own generator is set as
        it was when the state was taken, if the order is drawn from it. Workers that stayed end.

        Args:
            state: what `state_dict()` gave.

        Raises:
            StateError: it is of another dataset, batch size or sampler, or cannot be read.
        """
        draws = self._draws
        mark, now = self._places.read(draws, state)
        self._check_reading(mark)
        self._places.load(draws, mark, now)
        if self._team is not None:
            close_run(self._team.run, CLOSE_S)

    def _check_reading(self, mark: Mark) -> None:
        splits = self._splits or (mark.parts is not None and self.num_workers > 0)
        check_reading(mark, workers=self.num_workers, splits=splits, in_order=self.in_order)
        self._splits = splits

    @property
    def _draws(self) -> Draws:
        return Draws(self._torch, self._samples, self.generator, reads=self._reads)

    @property
    def _stays(self) -> bool:
        return self.persistent_workers and self.num_workers > 0

    def _free_team(self, seed: int) -> Team | None:
        """Return the workers that stayed, if the next epoch, with this seed, may have them."""
        team = self._team
        if team is None or not self.num_workers or team.seed != seed:
            return None
        return team if team.is_free(self.num_workers) else None

    def _drawn_seed(self) -> int:
        torch = self._torch
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return int(drawn.item())
