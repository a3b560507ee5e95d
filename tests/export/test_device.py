"""Stages on a device are written with their device and depth as parameters."""

import pytest

from tests.export.notebooks import Notebook
from tests.export.test_realistic_chains import exported_chain

pytestmark = pytest.mark.torch


def test_a_copy_to_a_device(notebook: Notebook):
    """Both are parameters, and the depth that was tuned is the default."""
    found = exported_chain(
        notebook,
        "nbpipe.source(range(6)).map(plus).batch(2).to_device('cpu')",
        tune="pipe['to_device'].depth = 5",
    )
    assert found == (
        "*, batch_size: int=2, to_device_device: str='cpu', to_device_depth: int=5",
        (
            "nbpipe.source(range(6)).map(plus).batch(batch_size)"
            ".to_device(to_device_device, depth=to_device_depth)"
        ),
    )


def test_maps_on_the_device_of_a_copy(notebook: Notebook):
    """They follow its parameters: one device, one depth."""
    found = exported_chain(
        notebook,
        "nbpipe.source(range(6)).to_device('cpu', depth=3)"
        ".map(plus, device='cpu').map(times, device='cpu', name='ten')",
    )
    assert found == (
        "*, to_device_device: str='cpu', to_device_depth: int=3",
        (
            "nbpipe.source(range(6)).to_device(to_device_device, depth=to_device_depth)"
            ".map(plus, device=to_device_device).map(times, name='ten', device=to_device_device)"
        ),
    )


def test_a_map_on_a_device_alone(notebook: Notebook):
    """It has parameters of its own; a depth that is the default is left out."""
    found = exported_chain(
        notebook,
        "nbpipe.source(range(6)).batch(2).map(plus, device='cpu').map(abs, device='meta', depth=4)",
    )
    assert found == (
        "*, batch_size: int=2, plus_device: str='cpu', abs_device: str='meta', abs_depth: int=4",
        (
            "nbpipe.source(range(6)).batch(batch_size).map(plus, device=plus_device)"
            ".map(abs, device=abs_device, depth=abs_depth)"
        ),
    )


def test_a_stream_is_refused(notebook: Notebook):
    """It lives in this process; the message says what to leave out."""
    message = notebook.refused(
        """
import nbpipe
class Stream:
    def wait_event(self, event): pass
pipe = nbpipe.source(range(3)).to_device('cuda', stream=Stream())
pipe.export('loader.py')
"""
    )
    assert message == (
        "the stream of 'to_device' is a live Stream; leave stream out, and the run makes its own"
        "\n  used by: stage 'to_device'"
    )
