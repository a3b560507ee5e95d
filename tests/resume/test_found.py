"""Pipelines in which a place was once lost; a random search found them."""

import nbpipe
from tests.resume.checking import at, carried, rest_of


def test_an_input_of_which_everything_was_had():
    """An input that is through is not read again, though one before it is."""

    def pipe():
        parts = [nbpipe.source(lambda n=n: iter(range(n)), name=f"of_{n}") for n in (2, 1)]
        return nbpipe.concat(*parts, nbpipe.source([], name="none")).shuffle(buffer_size=3)

    expected = list(pipe())
    got, state = at(pipe(), 1)
    assert got + rest_of(pipe(), carried(state)) == expected
