"""The queue between two stages, bare: chunks go in, chunks of any size or single items come out."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.engine.task import EMPTY, Chunk, Queue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 9)),
        st.tuples(st.just("take"), st.integers(1, 20)),
        st.tuples(st.just("pop"), st.just(1)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=40,
)


def chunk(first, count, *, sized):
    """Make a chunk of items that are told apart; each is as large as its path says."""
    paths = range(first, first + count)
    return Chunk(paths, [str(path) for path in paths], list(paths) if sized else None)


@given(STEPS, st.booleans())
def test_queue_gives_what_it_was_given(steps, sized):
    """In the order of their coming, with their paths and sizes; the bytes held are those inside."""
    memory = SimpleNamespace(held_bytes=0) if sized else None
    queue, inside, made = Queue(memory), [], 0
    for step, count in steps:
        if step == "put":
            queue.put(chunk(made, count, sized=sized))
            inside += range(made, made + count)
            made += count
        elif step == "clear":
            queue.clear()
            inside.clear()
        elif inside and step == "pop":
            path, value, *size = queue.popleft()
            assert (path, value, size) == (inside[0], str(inside[0]), inside[:1] if sized else [])
            del inside[0]
        elif inside:
            taken = inside[:count]
            paths, values, sizes = queue.take(len(taken))
            assert list(paths) == taken
            assert values == [str(path) for path in taken]
            assert (sizes and list(sizes)) == (taken if sized else None)
            del inside[:count]
        assert (queue.count, len(queue)) == (len(inside), len(inside))
        assert [entry[0] for entry in queue] == inside
        if inside:
            assert queue.first_value == str(inside[0])
        if sized:
            assert memory.held_bytes == sum(inside)


def test_whole_chunk_is_not_copied():
    """What is taken as it came is the very list: a chunk costs the same whatever its length."""
    queue, one = Queue(), chunk(0, 64, sized=False)
    queue.put(one)
    assert queue.take(64).values is one.values


@pytest.mark.parametrize("take", [lambda queue: queue.popleft(), lambda queue: queue.take(1)])
def test_items_are_not_kept_behind_those_that_took_them(take):
    """An item that was taken is not held by the rest of its chunk."""
    queue, one = Queue(), chunk(0, 3, sized=False)
    queue.put(one)
    take(queue)
    assert one.values == [None, "1", "2"]


def test_chunk_of_entries():
    """Entries become columns, and columns entries."""
    assert Chunk.of([(0, "a"), ((1, 2), "b")]) == ((0, (1, 2)), ["a", "b"], None)
    assert Chunk.of([(0, "a", 10)]) == ((0,), ["a"], (10,))
    assert list(Chunk((0, 1), ["a", "b"], (5, 6)).entries()) == [(0, "a", 5), (1, "b", 6)]
    assert list(EMPTY.entries()) == []
