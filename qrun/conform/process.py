"""A runtime in a process of its own, that is started anew when it crashes or hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

import numpy as np

import qrun
from qrun.conform.answers import CRASHED, HUNG, Response
from qrun.conform.suite import Case
from qrun.conform.wire import receive, send
from qrun.errors import UnsupportedError
from qrun.ir.types import DTYPES, NUMBERS

CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); sys.path.append(sys.argv.pop(1)); import qrun; sys.path.pop(); "
    "from qrun.conform.worker import main; main(*sys.argv[1:])"
)
"""What the process executes: of this package's folder it takes qrun and nothing beside it, and nothing of the current
folder, which `-c` puts first, as "" (`-P` leaves it out, but only since Python 3.11)."""
STARTING = 120.0
"""Seconds for a runtime to be imported."""
_ENDING = 2.0
_Answers = SimpleQueue[tuple[dict[str, Any], list[bytes]] | None]


class ProcessRunner:
    """One adapter in one process. adapter: its module; option: what it is given;
    python: the interpreter, "" for this one.

    Raises UnsupportedError if the runtime cannot be imported there.
    """

    def __init__(self, name: str, adapter: str, option: str, python: str = "") -> None:
        self.name, self.adapter, self.option, self.python = name, adapter, option, python
        self.version = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def run(self, case: Case, limit: float) -> Response:
        """A crash or a hang ends the process; the next case gets another one."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        head = {
            "inputs": [[n, NUMBERS[a.dtype], list(a.shape)] for n, a in case.inputs.items()],
            "outputs": [[n, NUMBERS[a.dtype], list(a.shape)] for n, a in case.expected.items()] or [["y0", 2, []]],
        }
        try:
            send(process.stdin, head, [case.model, *(np.ascontiguousarray(a).tobytes() for a in case.inputs.values())])  # type: ignore[arg-type]
            answer = self._answers.get(timeout=limit)
        except Empty:
            self.close()
            return Response({}, HUNG, f"no answer in {limit:g} s")
        except (OSError, ValueError):
            answer = None
        if answer is None:
            return Response({}, CRASHED, self._ended())
        try:
            return _given(case, *answer)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration) as error:
            self.close()
            return Response({}, CRASHED, f"its answer cannot be read: {type(error).__name__}")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, self._log):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._answers: _Answers = SimpleQueue()
        command = [
            self.python or sys.executable,
            "-W",
            "ignore",
            "-c",
            CODE,
            str(Path(qrun.__file__).parents[1]),
            self.adapter,
            self.option,
        ]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        except OSError as error:
            self._log.close()
            raise self._missing(f"{command[0]} cannot be started: {error}") from None
        Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            answer = self._answers.get(timeout=STARTING)
        except Empty:
            answer = ({"missing": f"it does not start within {STARTING:g} s"}, [])
        told = answer[0] if answer else {"missing": self._ended()}
        if "version" not in told:
            self.close()
            raise self._missing(str(told.get("missing", "its answer cannot be read")))
        self.version = str(told["version"])

    def _missing(self, got: str) -> UnsupportedError:
        return UnsupportedError(
            "QR012",
            f"the runtime {self.name} cannot be used",
            facts=[("got", got[:400])],
            fixes=["install it, or name a Python that has it: --python PATH", "qrun explain conform"],
        )

    def _ended(self) -> str:
        """How the process ended, and its last words."""
        process = self._process
        code: int | None = None
        last = ""
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_ENDING)
            with suppress(OSError, ValueError):
                self._log.seek(max(self._log.seek(0, 2) - 2000, 0))
                lines = self._log.read().decode(errors="replace").split("\n")
                last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        self.close()
        return f"{ending(code)}{f': {last[:300]}' if last else ''}"


def ending(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "it closed its pipe"
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"
    return f"exit code {code}"


def _given(case: Case, head: dict[str, Any], parts: list[bytes]) -> Response:
    if "failed" in head:
        return Response({}, str(head["failed"]), str(head["message"]))
    rows, rest = head["outputs"], iter(parts)
    outputs = {}
    for name, row in zip(case.expected or [f"y{at}" for at in range(len(rows))], rows, strict=False):
        outputs[name] = None if row is None else np.frombuffer(next(rest), DTYPES[row[0]]).reshape(row[1])
    return Response(outputs)


def _listen(stream: Any, answers: _Answers) -> None:
    """Put every message of the process into `answers`, then None when it ends or sends something that is no message."""
    with stream, suppress(OSError, EOFError, ValueError, KeyError, TypeError):
        while True:
            answers.put(receive(stream))
    answers.put(None)
