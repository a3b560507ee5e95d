"""A kernel in a process of its own, and a client that sees every message it sends."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import zmq
from jupyter_client.connect import write_connection_file
from jupyter_client.session import Session

from tests.gates import HANG_S
from tests.kernel.versions import ROOT

KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "iopub": zmq.SUB}
Message = dict[str, Any]
# The id of a kernel's process, and a function that ends it.
Launched = tuple[int, Callable[[], None]]
LAUNCH = (  # as `python -m ipykernel_launcher`; tells on request where its threads are
    "import faulthandler, os, signal; faulthandler.register(signal.SIGUSR1, os.dup(2))\n"
    "from ipykernel import kernelapp; kernelapp.launch_new_instance()"
)
_MOMENT_MS = 50
SECOND_MS = 1000


class CellError(Exception):
    """What a cell has raised: the name of its type, its text, and the traceback as shown."""

    def __init__(self, reply: Message) -> None:
        super().__init__(f"{reply['ename']}: {reply['evalue']}")
        self.kind = reply["ename"]
        self.text = reply["evalue"]
        self.shown = "\n".join(reply["traceback"])


class Client:
    """Talks to one kernel, and keeps all that it says, in the order of arrival.

    ipykernel 7.0 to 7.3 may be deaf for good to a shell request that arrives while it sends a
    reply: wait for replies that are on their way before the next request.

    Args:
        folder: for the kernel's sockets and its log; its path is short.
        launch: starts the kernel of a connection file, with `log_of` for what it prints.
    """

    def __init__(self, folder: Path, launch: Callable[[Path], Launched]) -> None:
        self.folder = folder
        connection = folder / "connection.json"
        self.log = log_of(connection)
        ports = {f"{name}_port": n for n, name in enumerate([*KINDS, "stdin", "hb"], 1)}
        ip, key = str(folder / "k"), uuid.uuid4().bytes.hex().encode()
        write_connection_file(str(connection), transport="ipc", ip=ip, key=key, **ports)
        self._session = Session(key=key)
        self._context = zmq.Context()
        self._sockets = {
            name: self._connect(name, f"ipc://{ip}-{ports[f'{name}_port']}") for name in KINDS
        }
        self.pid, self._end = launch(connection)
        self.heard: list[Message] = []
        self._hears_output = False

    def _connect(self, name: str, address: str) -> zmq.Socket:
        socket = self._context.socket(KINDS[name])
        socket.linger, socket.reconnect_ivl = 0, 5
        if name == "iopub":
            socket.subscribe(b"")
            socket.rcvhwm = 0
        socket.connect(address)
        return socket

    def close(self) -> None:
        """End the kernel."""
        self._end()
        self._context.destroy(linger=0)

    @contextmanager
    def other_page(self) -> Iterator[None]:
        """Speak as another page of the front end for a block."""
        mine, self._session.session = self._session.session, uuid.uuid4().hex
        yield
        self._session.session = mine

    def interrupt(self) -> None:
        """Interrupt the kernel as a notebook's stop button does."""
        os.kill(self.pid, signal.SIGINT)

    # -- sending --------------------------------------------------------------------------
    def send(
        self,
        kind: str,
        content: Message,
        *,
        channel: str = "shell",
        subshell: str | None = None,
        metadata: Message | None = None,
    ) -> str:
        """Send a message; return its id."""
        message = self._session.msg(kind, content, metadata=metadata)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self._session.send(self._sockets[channel], message)
        return message["header"]["msg_id"]

    def execute(self, code: str, *, cell_id: str | None = None, subshell: str | None = None) -> str:
        """Send a cell, with the id that it has in its notebook, if any; return the request's id."""
        self.attend()
        content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": True}
        metadata = {"cellId": cell_id} if cell_id else {}
        return self.send("execute_request", content, subshell=subshell, metadata=metadata)

    def say(self, comm: str, data: object, *, subshell: str | None = None) -> str:
        """Send data to a comm; return the message's id."""
        return self.send("comm_msg", {"comm_id": comm, "data": data}, subshell=subshell)

    # -- listening ------------------------------------------------------------------------
    def attend(self) -> None:
        """Wait until the kernel's output reaches us: only what is sent from then on is heard."""
        output = self._sockets["iopub"]
        while not self._hears_output:
            self.reply(self.send("kernel_info_request", {}))
            heard = any(one["msg_type"] == "status" for one in self.heard)
            self._hears_output = heard or bool(output.poll(_MOMENT_MS))

    def wait(self, found: Callable[[Message], object], what: str) -> Message:
        """Return the first message that is wanted, of those that were heard and those to come."""
        seen = silent_s = 0
        while silent_s < HANG_S:
            for message in self.heard[seen:]:
                if found(message):
                    return message
            seen = len(self.heard)
            # A second is a second only while we run: a machine that stands still is no hang.
            silent_s = 0 if self._listen(SECOND_MS) else silent_s + 1
        kinds = dict(Counter(one["msg_type"] for one in self.heard))
        raise TimeoutError(
            f"no {what}, and nothing at all for {HANG_S} s, but {kinds}, at last\n"
            f"{self._last_said()}"
        )

    def _listen(self, limit_ms: int) -> bool:
        """Keep what comes; tell whether something came."""
        poller = zmq.Poller()
        for socket in self._sockets.values():
            poller.register(socket, zmq.POLLIN)
        ready = poller.poll(limit_ms)
        for socket, _ in ready:
            _, parts = self._session.feed_identities(socket.recv_multipart())
            self.heard.append({**self._session.deserialize(parts), "at_s": monotonic()})
        return bool(ready)

    def _last_said(self) -> str:
        """Return the last messages, what the kernel has printed, and where its threads are."""
        os.kill(self.pid, signal.SIGUSR1)
        self._listen(SECOND_MS)
        last = "\n".join(f"{one['msg_type']} {one['content']}" for one in self.heard[-20:])
        return f"{last}\n{self.log.read_text()}"

    def reply(self, request: str) -> Message:
        """Return the reply to a request."""
        return self.wait(
            lambda one: one["msg_type"].endswith("_reply") and parent(one) == request,
            f"reply to {request}",
        )

    def end(self, code: str, cell_id: str | None = None) -> tuple[str, Message]:
        """Run a cell to its end, good or bad; return the request's id, and what its reply says."""
        status = "aborted"
        while status == "aborted":  # a cell that failed takes those with it that arrive just then
            cell = self.execute(code, cell_id=cell_id)
            content = self.reply(cell)["content"]
            status = content["status"]
        self.wait(lambda one: is_status(one, "idle") and parent(one) == cell, "idle")
        return cell, content

    def run(self, code: str, cell_id: str | None = None) -> str:
        """Run a cell to its end; return what it has printed.

        Raises:
            CellError: the cell has raised something.
        """
        cell, content = self.end(code, cell_id)
        if content["status"] != "ok":
            raise CellError(content)
        return self.output(cell)

    def printed(self, cell: str, text: str) -> Message:
        """Wait until a cell has printed a text."""
        return self.wait(lambda _: text in self.output(cell), f"print of {text!r}")

    def output(self, cell: str) -> str:
        """Return what a cell has printed so far."""
        streams = (one for one in self.heard if one["msg_type"] == "stream")
        return "".join(one["content"]["text"] for one in streams if parent(one) == cell)

    def data(self, comm: str) -> list[Message]:
        """Return what a comm has sent so far."""
        messages = (one for one in self.heard if one["msg_type"] == "comm_msg")
        return [one["content"]["data"] for one in messages if one["content"]["comm_id"] == comm]

    def acked(self, comm: str, data: object) -> Message:
        """Wait until a comm has acknowledged what it was sent."""
        return self.wait(
            lambda one: (
                one["msg_type"] == "comm_msg"
                and one["content"]["comm_id"] == comm
                and one["content"]["data"] == {"ack": data}
            ),
            f"ack of {data!r}",
        )

    def create_subshell(self) -> str:
        """Create a subshell; return its id."""
        request = self.send("create_subshell_request", {}, channel="control")
        return self.reply(request)["content"]["subshell_id"]


def log_of(connection: Path) -> Path:
    """Return where a kernel writes what it prints."""
    return connection.with_name(f"{connection.name}.log")


def launched(python_path: str, arguments: tuple[str, ...], connection: Path) -> Launched:
    """Start a kernel as Jupyter does, in the folder of its connection file."""
    paths = [path for path in (python_path, str(ROOT)) if path]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), IPYTHONDIR=str(connection.parent))
    env["JPY_PARENT_PID"] = str(os.getpid())  # the kernel ends when the tests are killed
    command = [sys.executable, "-Xfrozen_modules=off", "-c", LAUNCH]
    with log_of(connection).open("w") as log:
        process = subprocess.Popen(
            [*command, "-f", str(connection), *arguments],
            env=env,
            cwd=connection.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def end() -> None:
        process.kill()
        process.wait()

    return process.pid, end


@contextmanager
def running(*arguments: str, python_path: str = "") -> Iterator[Client]:
    """Run a kernel for a block, in a folder of its own.

    Args:
        arguments: for the kernel's command line.
        python_path: what the kernel's PYTHONPATH begins with.
    """
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        client = Client(Path(folder), partial(launched, python_path, arguments))
        try:
            client.attend()
            yield client
        finally:
            client.close()


def parent(message: Message) -> str | None:
    """Return the id of the message that this one belongs to."""
    return message["parent_header"].get("msg_id")


def is_status(message: Message, state: str) -> bool:
    """Return whether the message says that the kernel is in a state."""
    return message["msg_type"] == "status" and message["content"]["execution_state"] == state
