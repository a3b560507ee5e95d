"""Samplers, datasets and loops for the tests of a loader's state."""

import io
import json

import torch
from torch.utils.data import IterableDataset

import nbpipe
from tests.loader.datasets import Cursor, Numbers


class Backwards:
    """Gives the indices from behind; has no state."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length - 1, -1, -1))

    def __len__(self):
        return self.length


class Marked:
    """Has its place as its state."""

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Walk(Marked, Backwards):
    """Goes on through the indices where the epoch before stopped; has a state of its own."""

    def __init__(self, length):
        super().__init__(length)
        self.at = 0

    def __iter__(self):
        for _ in range(self.length - self.at % self.length):
            self.at += 1
            yield self.at * 7 % self.length


class Sloppy(Backwards):
    """Has a state that at the end of an epoch is that of the end."""

    def __init__(self, length):
        super().__init__(length)
        self.given = self.begin = 0

    def __iter__(self):
        self.given, self.begin = self.begin, 0
        for index in range(self.given, self.length):
            self.given += 1
            yield index

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begin = state["given"]


class Tape(Sloppy, IterableDataset):
    """An iterable dataset with such a state; counts what it read."""

    def __init__(self, length=21):
        super().__init__(length)
        self.read = 0

    def __iter__(self):
        for item in super().__iter__():
            self.read += 1
            yield item


class Lists:
    """Gives lists of indices of several lengths."""

    def __iter__(self):
        return iter([[3, 1], [4], [1, 5, 9], [2, 6], [5]])

    def __len__(self):
        return 5


class Wheel(Cursor):
    """Gives lists of indices, is its own iterator, and goes back when it is iterated."""

    def __next__(self):
        index = super().__next__()
        return [index + 1, 2 * index + 2]

    def __len__(self):
        return self.length


class Bookmark(Marked, Cursor):
    """An iterable dataset of this kind, with a state of its own."""

    def __init__(self):
        super().__init__(21)


class Wound(Bookmark):
    """The same, but it has no state before it is iterated."""

    def __init__(self):
        super().__init__()
        del self.at


class Rewound(Marked, IterableDataset):
    """Goes on where it was told to, and goes back behind its last sample; gives a generator."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 21:
            self.at += 1
            yield self.at - 1
        self.at = 0


class Late(IterableDataset):
    """Gives a generator, and has a state only from its first sample on."""

    def __init__(self):
        self.begin = 0

    def __iter__(self):
        self.at, self.begin = self.begin, 0
        while self.at < 21:
            self.at += 1
            yield self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


class Reel(IterableDataset):
    """Its iterator has the state, and draws from torch's own generator."""

    def __iter__(self):
        return Turning()


class Counted(Reel):
    """Both have a state, and the dataset's own says nothing of the place."""

    def __init__(self):
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        return super().__iter__()

    def state_dict(self):
        return {"begun": self.begun}

    def load_state_dict(self, state):
        self.begun = state["begun"]


class Turning(Bookmark):
    """Gives random numbers; how torch's generator was is in its state."""

    def __next__(self):
        super().__next__()
        return float(torch.rand(()))

    def state_dict(self):
        return {"at": self.at, "torch": torch.get_rng_state().tolist()}

    def load_state_dict(self, state):
        self.at = state["at"]
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


def sent(state):
    """Give a state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(json.loads(json.dumps(state)), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def plain(batch):
    """Give a batch as lists."""
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def numbers(length=23, size=4, *, seeded=False, shuffle=True, **how):
    """Give a loader that shuffles, with a generator of its own or with torch's."""
    generator = torch.Generator().manual_seed(5) if seeded else None
    return nbpipe.DataLoader(Numbers(length), size, shuffle, generator=generator, **how)


def cut(make, at, *, epoch=0):
    """Take a state behind some batches of an epoch.

    Returns:
        The state, and all batches behind it of this loader: the rest, and two epochs.
    """
    torch.manual_seed(3)
    loader = make()
    for _ in range(epoch):
        list(loader)
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    state = sent(loader.state_dict())
    rest = [[plain(batch) for batch in batches]]
    rest += [[plain(batch) for batch in loader] for _ in range(2)]
    loader.close()
    return state, rest


def resumed(make, state, epochs=3):
    """Give the rest of an epoch, and the epochs behind it, of another loader."""
    torch.manual_seed(999)
    loader = make()
    loader.load_state_dict(state)
    got = [[plain(batch) for batch in loader] for _ in range(epochs)]
    loader.close()
    return got
