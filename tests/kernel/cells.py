"""What the cells of the tests use; it is run in the kernel."""

import time

import comm
from IPython import get_ipython

from nbpipe.jupyter import kernel as _kernel
from nbpipe.jupyter.kernel import Pump, cure
from tests.gates import HANG_S

_kernel.PATIENCE_S = HANG_S  # no handler takes long here, but a machine may stand still in one
LONGEST_S = 2.5 * HANG_S  # longer than the client bears silence
pump = Pump.of(get_ipython())


class Knob:
    """A comm that acknowledges what it hears, and keeps it."""

    def __init__(self, *, cured: bool = True) -> None:
        self.comm = comm.create_comm(target_name="nbpipe.test")
        self.heard = []
        self.comm.on_msg(self._hear)
        if cured:
            cure(self.comm, self._hear)

    def _hear(self, message) -> None:
        data = message["content"]["data"]
        self.heard.append(data)
        if data == "fail":
            raise RuntimeError("as it should")
        if data == "print":
            print("from the handler")
        self.comm.send({"ack": data})


def attend(*knobs, polls=True) -> None:
    """Say that the cell has begun, and keep the kernel busy."""
    print("begun", flush=True)
    stay(*knobs, polls=polls)


def stay(*knobs, polls=True) -> None:
    """Keep the kernel busy until one of the knobs hears "end"; poll all the while."""
    ends_s = time.monotonic() + LONGEST_S
    while not any("end" in knob.heard for knob in knobs):
        if polls:
            pump.poll()
        if time.monotonic() > ends_s:
            raise TimeoutError("nobody said that this is the end")
        time.sleep(0.001)
