"""Stages on a device are written with their device and depth as parameters."""

import pytest

from tests.export.notebooks import Notebook
from tests.export.test_realistic_chains import exported_chain

pytestmark = pytest.mark.torch
SOURCE = "nbpipe.source(range(6))"
CHAINS = {  # what is given, and tuned; the parameters; what is returned
    "a copy, and the depth that was tuned": (
        f"{SOURCE}.map(plus).batch(2).to_device('cpu')",
        "pipe['to_device'].depth = 5",
        "*, batch_size: int=2, to_device_device: str='cpu', to_device_depth: int=5",
        f"{SOURCE}.map(plus).batch(batch_size).to_device(to_device_device, depth=to_device_depth)",
    ),
    "maps that follow the device and depth of a copy": (
        (
            f"{SOURCE}.to_device('cpu', depth=3)"
            ".map(plus, device='cpu').map(times, device='cpu', name='ten')"
        ),
        "",
        "*, to_device_device: str='cpu', to_device_depth: int=3",
        (
            f"{SOURCE}.to_device(to_device_device, depth=to_device_depth)"
            ".map(plus, device=to_device_device).map(times, name='ten', device=to_device_device)"
        ),
    ),
    "maps alone; a depth that is the default is left out": (
        f"{SOURCE}.batch(2).map(plus, device='cpu').map(abs, device='meta', depth=4)",
        "",
        "*, batch_size: int=2, plus_device: str='cpu', abs_device: str='meta', abs_depth: int=4",
        (
            f"{SOURCE}.batch(batch_size).map(plus, device=plus_device)"
            ".map(abs, device=abs_device, depth=abs_depth)"
        ),
    ),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_devices(notebook: Notebook, kind: str):
    """Devices and depths are parameters; stages on one device have one."""
    chain, tune, *expected = CHAINS[kind]
    assert exported_chain(notebook, chain, tune) == tuple(expected)


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


def test_a_choice_of_a_device_is_kept(notebook: Notebook):
    """The default of the parameter is the choice, not what it gave here."""
    done = notebook.exported(
        """
import nbpipe, torch
device = 'cuda' if torch.cuda.is_available() else 'cpu'
pipe = nbpipe.source(range(4)).map(torch.tensor).batch(2).to_device(device)
pipe.export('loader.py')
"""
    )
    assert "is_available()" in done.text
