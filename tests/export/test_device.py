"""Stages on a device are written with their device and depth as parameters."""

import pytest

from tests.export.notebooks import Notebook
from tests.export.test_realistic_chains import exported_chain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.parametrize("notebook", [("torch",)], indirect=True),
]
SOURCE = "nbpipe.source(range(6))"
CHAINS = {  # what is given, and tuned; what parameters turn at least
    "a copy, and the depth that was tuned": (
        f"{SOURCE}.map(plus).batch(2).to_device('cpu')",
        "pipe['to_device'].depth = 5",
        {"batch.size": 2, "to_device.depth": 5},
    ),
    "maps that follow the device and depth of a copy": (
        (
            f"{SOURCE}.to_device('cpu', depth=3)"
            ".map(plus, device='cpu').map(times, device='cpu', name='ten')"
        ),
        "",
        {"to_device.depth": 3, "plus.depth": 3, "ten.depth": 3},
    ),
    "maps alone": (
        f"{SOURCE}.batch(2).map(plus, device='cpu').map(abs, device='meta', depth=4)",
        "",
        {"batch.size": 2, "abs.depth": 4},
    ),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_devices(notebook: Notebook, kind: str):
    """Stages have the devices of the notebook; depths are parameters, one for each device."""
    chain, tune, turns = CHAINS[kind]
    assert turns.items() <= exported_chain(notebook, chain, tune).turns.items()


def test_a_stream_is_made_by_the_module(notebook: Notebook):
    """The call that makes a stream is copied as it was typed."""
    notebook.run(
        """
import nbpipe
class Stream:
    def wait_event(self, event): pass
pipe = nbpipe.source(range(3)).to_device('cuda', stream=Stream())
pipe.export('loader.py', check_items=0)
"""
    )
    assert "stream=Stream()" in (notebook.folder / "loader.py").read_text()


def test_a_choice_of_a_device_is_kept(notebook: Notebook):
    """The module chooses where it is imported, and does not write what the choice gave here."""
    done = notebook.exported(
        """
import nbpipe, torch
device = 'cuda' if torch.cuda.is_available() else 'cpu'
pipe = nbpipe.source(range(4)).map(torch.tensor).batch(2).to_device(device)
pipe.export('loader.py')
"""
    )
    assert "'cuda' if torch.cuda.is_available() else 'cpu'" in done.text
