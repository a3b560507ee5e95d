"""Kernel: a process that runs a notebook's cells; it ends with whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, final

import psutil

from ..base.format import shortened
from ..errors import MissingExtraError, NbpipeError, near_match
from .terminal import BadUsageError, printable

_START_S = 60.0  # time that a kernel may take to answer [s]
_END_S = 6.0  # time that it may take to end by itself [s]
_LOG_BYTES = 4000
# Names that stand for the Python that starts the kernel.
_THIS_PYTHON = ("python", "python3", "python{}.{}".format(*sys.version_info))
T = TypeVar("T")


class KernelDiedError(NbpipeError):
    """The kernel's process ended, or never began.

    Args:
        message: how.
        last_words: what it wrote last past the notebook; may be empty.
    """

    def __init__(self, message: str, last_words: str) -> None:
        super().__init__(message)
        self.last_words = last_words


class CellError(NbpipeError):
    """A cell raised something.

    Args:
        kind: name of the exception's class.
        message: its text.
        traceback: as the kernel shows it.
    """

    def __init__(self, kind: str, message: str, traceback: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message
        self.traceback = traceback


def kernel_command(name: str) -> str:
    """Return the program that a kernel is.

    Raises:
        BadUsageError: there is no kernel of this name.
        MissingExtraError: ipykernel is not installed.
    """
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ModuleNotFoundError as missing:
        raise MissingExtraError.of("ipykernel", "export", "nbpipe export") from missing
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

    Args:
        name: of the kernel.
        folder: its working folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        from jupyter_client.manager import AsyncKernelManager

        self._manager: Any = AsyncKernelManager(kernel_name=name, shutdown_wait_time=_END_S)
        self._folder = folder
        self._client: Any = None
        self._death: asyncio.Future[Any] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `_close`

    async def __aenter__(self) -> Self:
        try:
            await self._start()
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

    async def _start(self) -> None:
        manager = self._manager
        # the user's history is that of what the user types
        arguments = ["--HistoryManager.hist_file=:memory:"] if manager.ipykernel else []
        try:
            await manager.start_kernel(
                cwd=str(self._folder), stdout=self._log, stderr=self._log, extra_arguments=arguments
            )
            self._death = asyncio.ensure_future(manager.provisioner.wait())
            self._client = manager.client()
            self._client.start_channels()
            await self._or_death(self._client.wait_for_ready(timeout=_START_S))
        except (OSError, RuntimeError) as error:
            raise KernelDiedError(
                f"the kernel did not start ({printable(shortened(str(error), 300))})",
                self._last_words(),
            ) from error

    async def run(self, code: str, *, is_cell: bool = True) -> None:
        """Run a cell.

        Args:
            code: what stands in it.
            is_cell: it takes the next number of `In`, and its text is remembered.

        Raises:
            CellError: it raised something.
            KernelDiedError: the kernel ended.
        """
        content = (await self._ask(code, silent=not is_cell))["content"]
        if content["status"] != "ok":
            raise _cell_error(content)

    async def evaluate(self, expression: str) -> dict[str, Any]:
        """Evaluate an expression; return what it shows as JSON. No variable is added or changed.

        Raises:
            CellError: it raised something.
            KernelDiedError: the kernel ended.
        """
        reply = await self._ask("", silent=True, user_expressions={"it": expression})
        content = reply["content"]
        answer = content.get("user_expressions", {}).get("it", content)
        if answer["status"] != "ok":
            raise _cell_error(answer)
        shown: dict[str, Any] = answer["data"]["application/json"]
        return shown

    async def _ask(self, code: str, **options: Any) -> Any:
        reply = self._client.execute_interactive(
            code, allow_stdin=False, output_hook=_pass_over, **options
        )
        return await self._or_death(reply)

    async def _or_death(self, reply: Coroutine[Any, Any, T]) -> T:
        """Wait for a reply, or for the end of the kernel."""
        assert self._death is not None
        task = asyncio.ensure_future(reply)
        try:
            await asyncio.wait({task, self._death}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        code = self._death.result()
        how = f"by signal {-code}" if code and code < 0 else f"with exit code {code}"
        raise KernelDiedError(f"the kernel died {how}", self._last_words())

    def _last_words(self) -> str:
        """Return the last line that the kernel wrote past the notebook, without its warnings."""
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
            if self._death is not None:
                self._death.cancel()
            if self._client is not None:
                self._client.stop_channels()
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


def _pass_over(message: object) -> None:
    """Drop what a cell prints and shows: it is for those who open the notebook."""


def _cell_error(content: dict[str, Any]) -> CellError:
    return CellError(
        str(content.get("ename", content["status"])),
        str(content.get("evalue", "")),
        "\n".join(map(str, content.get("traceback", ()))),
    )
