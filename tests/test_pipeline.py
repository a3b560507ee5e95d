"""Pipelines as a whole: every chain against a plain list, frozen structure, names, tables."""

import pytest
from hypothesis import example, given, settings

import nbpipe
from nbpipe import ArgumentTypeError, UnknownStageError
from tests.strategies import HANDS, Hands, Recipe, recipes


@settings(max_examples=150)
@given(recipes(), HANDS)
def test_any_chain_does_what_a_list_would(recipe, hands):
    """Whatever the steps, and whoever does them, the items are those of the model, in order."""
    assert list(recipe.build(hands)) == recipe.model()


@settings(max_examples=60)
@given(recipes())
def test_length_is_the_number_of_items(recipe):
    """`len()` is the number of items, or raises where a step may give any number."""
    pipe = recipe.build()
    try:
        length = len(pipe)
    except TypeError:
        length = None
    assert length == (len(recipe.model()) if recipe.sized else None)


@settings(max_examples=40)
@given(recipes(), HANDS)
def test_epochs_are_alike(recipe, hands):
    """Without randomness every epoch of a run gives the same items."""
    with recipe.build(hands).start() as run:
        epochs = [list(run) for _ in range(3)]
    assert epochs == 3 * [recipe.model()]
