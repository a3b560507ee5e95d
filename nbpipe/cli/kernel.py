"""Kernel: nbclient runs a notebook's cells in a process, which ends with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import psutil

from ..base.format import shortened
from ..errors import MissingExtraError, NbpipeError, near_match
from ..show.terminal import printable
from .terminal import BadUsageError

_START_S = 60  # time that a kernel may take to answer [s]
_LOG_BYTES = 4000
# Names that stand for the Python that starts the kernel.
_THIS_PYTHON = ("python", "python3", "python{}.{}".format(*sys.version_info))


class KernelDiedError(NbpipeError):
    """The kernel's process ended, or did not start.

    Args:
        message: how.
        last_words: the last line of its log; may be empty.
    """

    def __init__(self, message: str, last_words: str) -> None:
        super().__init__(message)
        self.last_words = last_words


class CellError(NbpipeError):
    """A cell raised something.

    Args:
        error: `ename`, `evalue` and `traceback`, as the kernel reports them.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        self.kind, message = str(error.get("ename", "")), str(error.get("evalue", ""))
        self.traceback = "\n".join(map(str, error.get("traceback", ())))
        super().__init__(f"{self.kind}: {message}" if message else self.kind)


def kernel_command(name: str) -> str:
    """Return the program that a kernel is.

    Raises:
        BadUsageError: there is no kernel of this name.
        MissingExtraError: nbclient or ipykernel is not installed.
    """
    try:
        import nbclient  # noqa: F401  here, so that nothing is run where it is missing
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ModuleNotFoundError as missing:
        raise MissingExtraError.of("nbclient", "export", "nbpipe export") from missing
    manager = KernelSpecManager()
    try:
        program = str(manager.get_kernel_spec(name).argv[0])
    except NoSuchKernel as missing:
        known = sorted(manager.find_kernel_specs())
        if name == "python3":
            raise MissingExtraError.of("ipykernel", "export", "nbpipe export") from missing
        raise BadUsageError(
            f"no kernel {name!r} on this machine{near_match(name, known)}; there are "
            f"{', '.join(map(repr, known)) or 'none'}: choose one with --kernel"
        ) from missing
    return sys.executable if program in _THIS_PYTHON else program


@final
class Kernel:
    """A kernel from `async with` to the end of its block.

    nbclient's own context is not used: its signal handlers would leave a cell waiting for ever.

    Args:
        name: of the kernel.
        folder: its working folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        from nbclient import NotebookClient
        from nbformat.v4 import new_notebook

        self._client: Any = NotebookClient(
            new_notebook(),
            kernel_name=name,
            startup_timeout=_START_S,
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
        )
        self._manager: Any = self._client.create_kernel_manager()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `_close`

    async def __aenter__(self) -> Self:
        try:
            await self._client.async_start_new_kernel(stdout=self._log, stderr=self._log)
            await self._client.async_start_new_kernel_client()
        except (OSError, RuntimeError) as error:
            words = printable(shortened(str(error), 300))
            last_words = self._last_words()
            await self._close()
            raise KernelDiedError(f"the kernel did not start ({words})", last_words) from error
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def run(self, text: str, tags: Iterable[str]) -> None:
        """Run a cell; one with the tag `raises-exception` may raise.

        Raises:
            CellError: it raised something.
            KernelDiedError: the kernel ended.
        """
        from nbclient.exceptions import CellExecutionError, DeadKernelError
        from nbformat.v4 import new_code_cell

        cell = new_code_cell(text, metadata={"tags": list(tags)})
        cells = self._client.nb.cells
        cells.append(cell)
        try:
            await self._client.async_execute_cell(cell, len(cells) - 1)
        except CellExecutionError as error:
            shown = [one for one in cell.outputs if one.output_type == "error"]
            raise CellError(shown[-1] if shown else vars(error)) from error
        except DeadKernelError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # nbclient takes that for a death
                raise asyncio.CancelledError from error
            raise await self._death() from error

    async def ask(self, code: str, expression: str = "None") -> Any:
        """Execute code that is no cell of the notebook; return the JSON of an expression after it.

        Raises:
            CellError: it raised something.
            KernelDiedError: the kernel ended.
        """
        from nbclient.exceptions import DeadKernelError

        wanted = {"it": expression}
        sent = self._client.kc.execute(code, silent=True, user_expressions=wanted)
        try:
            content = (await self._client.async_wait_for_reply(sent))["content"]
        except DeadKernelError as error:
            raise await self._death() from error
        answer = content.get("user_expressions", {}).get("it", content)
        if answer["status"] != "ok":
            raise CellError(answer)
        return answer["data"].get("application/json")

    async def _death(self) -> KernelDiedError:
        code = await self._manager.provisioner.poll()
        how = f"by signal {-code}" if code and code < 0 else f"with exit code {code}"
        return KernelDiedError(f"the kernel died {how}", self._last_words())

    def _last_words(self) -> str:
        """Return the last line of the kernel's log, without its own warnings."""
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - _LOG_BYTES))
        written = self._log.read().decode("utf-8", "replace").strip().splitlines()
        lines = [line for line in written if line.strip() and "[IPKernelApp]" not in line]
        return printable(shortened(lines[-1], 300)) if lines else ""

    async def _close(self) -> None:
        """End the kernel, and every process that it started."""
        family = self._descendants()
        try:
            with contextlib.suppress(Exception):  # it is over, whatever that raises
                await self._manager.shutdown_kernel()
        finally:
            if self._client.kc is not None:
                self._client.kc.stop_channels()
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._log.close()

    def _descendants(self) -> list[psutil.Process]:
        pid = getattr(self._manager.provisioner, "pid", None)
        try:
            return psutil.Process(pid).children(recursive=True) if pid else []
        except psutil.Error:
            return []
