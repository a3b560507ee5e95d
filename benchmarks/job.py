"""Job: one measurement to be taken in a process of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """What a child process is asked to measure; travels as JSON.

    Attributes:
        workload: key of the workload, as "W2".
        contender: name of the contender, as "spdl".
        options: settings of the contender for this workload.
        items: items that go through.
        warmup: items of the epoch that goes through before the clock starts; 0 for none.
        cycles: starts and stops (W7), growths and shrinks (live).
        window_s: how long is watched (idle, metrics) [s].
        burn_loops: loops of pure Python: of the consumer for each batch (W2b), of the stage for
            each item (W4).
        floats: float32 numbers in each array (W4, W6).
        photos: folder of the JPEG files (W3).
        cores: cores this process may use.
    """

    workload: str
    contender: str
    items: int
    options: Mapping[str, Any] = field(default_factory=dict)
    warmup: int = 0
    cycles: int = 1
    window_s: float = 1.0
    burn_loops: int = 0
    floats: int = 0
    photos: str = ""
    cores: int = 1

    def option(self, name: str, *, default: Any) -> Any:
        """Give a setting of the contender, or `default`."""
        return self.options.get(name, default)

    def sized(self, items: int) -> Job:
        """Give the same job with another number of items."""
        return dataclasses.replace(self, items=items)

    def with_options(self, options: Mapping[str, Any]) -> Job:
        """Give the same job with other settings."""
        return dataclasses.replace(self, options=options)

    def to_json(self) -> str:
        """Write as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))
