"""A reader of the Trace Event format: it refuses what Perfetto would not show as meant."""

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Track:
    """A track of a trace: its process, its name, and its slices in time."""

    process: str = ""
    name: str = ""
    slices: list = field(default_factory=list)


@dataclass
class TraceFile:
    """A trace: its tracks by process and number, its marks, and how much was left out."""

    tracks: dict
    marks: list
    left_out: dict

    def named(self, name):
        """Give the only track of this name."""
        (found,) = [one for one in self.tracks.values() if one.name == name]
        return found

    def slices(self, name):
        """Give the slices of this name on all tracks."""
        return [
            one for track in self.tracks.values() for one in track.slices if one["name"] == name
        ]


_REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "tid", "args"},
    "i": {"name", "cat", "ts", "pid", "tid", "s"},
}
_ABOUT = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read(path):
    """Read a trace.

    Raises:
        AssertionError: a field is missing or has another type, a track has no name, or slices of
            one track overlap without one inside the other.
    """
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    file = json.loads(text.decode("ascii"), parse_constant=_no_number)
    assert file["displayTimeUnit"] in ("ms", "ns")
    tracks, processes, marks = defaultdict(Track), {}, []
    for event in file["traceEvents"]:
        kind = event["ph"]
        assert _REQUIRED[kind] <= event.keys(), event
        assert type(event["pid"]) is type(event["tid"]) is int, event
        assert event["tid"] > 0, "Perfetto takes thread 0 for the idle one"
        assert isinstance(event["name"], str)
        assert event["name"]
        place = event["pid"], event["tid"]
        if kind == "M":
            assert event["name"] in _ABOUT
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            if event["name"] == "thread_name":
                assert not tracks[place].name, "named twice"
                tracks[place].name = event["args"]["name"]
            continue
        assert event["ts"] >= 0
        if kind == "i":
            assert event["s"] in "gpt"
            marks.append(event)
        else:
            assert event["dur"] >= 0
            tracks[place].slices.append(event)
    for (pid, _), track in tracks.items():
        track.process = processes[pid]
        assert track.name
        track.slices.sort(key=lambda one: (one["ts"], -one["dur"]))
        _check_nesting(track.slices)
    return TraceFile(dict(tracks), marks, file["otherData"])


def _no_number(text):
    raise AssertionError(f"{text} is no JSON")


def _check_nesting(slices):
    """Check that two slices lie one after the other, or one inside the other."""
    open_until = []
    for one in slices:
        end = one["ts"] + one["dur"]
        while open_until and open_until[-1] <= one["ts"] + 1e-3:  # rounded to a nanosecond
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3, one
        open_until.append(end)
