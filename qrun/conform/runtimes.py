"""The runtimes that can be judged, by name, and the runner of cases in a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import IO, Any, Protocol

import numpy as np

import qrun
from qrun.conform.processes import FIRST, Processes
from qrun.conform.suite import Case
from qrun.conform.worker import receive, send
from qrun.declare.frozen import frozen
from qrun.errors import CallError, UnsupportedError, suggest
from qrun.ir import Array
from qrun.ir.types import DTYPES, NUMBERS

REFUSED, UNSUPPORTED, CRASHED, HUNG = "refused", "unsupported", "crashed", "hung"


@frozen
class Response:
    """A runtime's answer to a case.

    outputs: arrays by name, None for a missing output; empty unless the case ran.
    failed:  "" if it ran, else refused, unsupported, crashed or hung.
    message: the runtime's message, or how it ended.
    """

    outputs: Mapping[str, Array | None]
    failed: str = ""
    message: str = ""


NO_FACTS: Mapping[str, Any] = MappingProxyType({})
"""The facts of a program, of which qrun knows nothing."""


class CaseRunner(Protocol):
    """Runs cases, one after the other."""

    @property
    def version(self) -> str:
        """The runtime's version, as it reports it; "" if it does not."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """The fields ``python``, ``wheel`` and ``options`` of `qrun.conform.results.RuntimeResult`, as far as known."""
        ...

    def run(self, case: Case, limit: float) -> Response:
        """Run one case, in at most `limit` seconds."""
        ...

    def close(self) -> None:
        """End the runtime's process."""
        ...


CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); sys.path.append(sys.argv.pop(1)); import qrun; sys.path.pop(); "
    "from qrun.conform.worker import main; main(*sys.argv[1:])"
)
"""The code of the child process. From the folder that holds this package it imports only qrun, and nothing from the
current folder, which `-c` puts first, as "" (`-P` leaves it out, but only since Python 3.11)."""
STARTING = 120.0
"""Seconds within which a runtime must be imported."""
_ENDING = 2.0

_Answers = SimpleQueue[tuple[dict[str, Any], list[bytes]] | None]


class ProcessRunner:
    """Runs cases in an adapter in a child process, one of `processes`. adapter: see `worker.main`; option: passed to
    the adapter; python: the interpreter, "" for this one; poison: see `FIRST`.

    Raises UnsupportedError if the runtime cannot be imported there.
    """

    def __init__(
        self, processes: Processes, name: str, adapter: str, option: str, python: str = "", poison: int = FIRST
    ) -> None:
        self.name, self.adapter, self.option, self.python, self._poison = name, adapter, option, python, poison
        self._processes = processes
        self.version, self.facts = "", dict[str, Any]()
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def run(self, case: Case, limit: float) -> Response:
        """Run one case. A crash or a hang ends the process; the next case starts another one."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._logged = os.fstat(self._log.fileno()).st_size
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
            return Response({}, CRASHED, self._describe_end())
        try:
            return _read_response(case, *answer)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration) as error:
            self.close()
            return Response({}, CRASHED, f"its answer cannot be read: {type(error).__name__}")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            self._processes.end(process)
            for stream in (process.stdin, self._log):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        """Start the process that runs cases."""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._logged = 0
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
            self._process = self._processes.start(
                command, self._poison, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
            )
        except OSError as error:
            self._log.close()
            raise self._missing_error(f"{command[0]} cannot be started: {error}") from None
        Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            answer = self._answers.get(timeout=STARTING)
        except Empty:
            answer = ({"missing": f"it does not start within {STARTING:g} s"}, [])
        hello = answer[0] if answer else {"missing": self._describe_end()}
        if "version" not in hello:
            self.close()
            raise self._missing_error(str(hello.get("missing", "its answer cannot be read")))
        self.version = str(hello["version"])
        self.facts = {name: hello[name] for name in ("python", "wheel", "options")}

    def _missing_error(self, got: str) -> UnsupportedError:
        """The QR012 error of a runtime that cannot be used."""
        return UnsupportedError(
            "QR012",
            f"the runtime {self.name} cannot be used",
            facts=[("got", got[:400])],
            fixes=[
                f"pip install {packages_of(self.name)}, or name a Python that has it: --python PATH",
                "qrun explain conform",
            ],
        )

    def _describe_end(self) -> str:
        """Text: how the process ended, and the last line on its stderr since the case began."""
        process = self._process
        code: int | None = None
        last = ""
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_ENDING)
            with suppress(OSError, ValueError):
                start = max(self._logged, os.fstat(self._log.fileno()).st_size - 2000)
                self._log.seek(start)  # where the process would write next, but it ends here
                lines = self._log.read(2000).decode(errors="replace").split("\n")
                last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        self.close()
        return f"{exit_text(code)}{f': {last[:300]}' if last else ''}"


def exit_text(code: int | None) -> str:
    """Describe an exit code: a signal's name, or ``exit code 1``; None: it closed its pipe."""
    if code is None:
        return "it closed its pipe"
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"
    return f"exit code {code}"


def _read_response(case: Case, head: dict[str, Any], parts: list[bytes]) -> Response:
    """A case's response from the worker's message."""
    if "failed" in head:
        return Response({}, str(head["failed"]), str(head["message"]))
    rows, rest = head["outputs"], iter(parts)
    outputs = {}
    for name, row in zip(case.expected or [f"y{at}" for at in range(len(rows))], rows, strict=False):
        outputs[name] = None if row is None else np.frombuffer(next(rest), DTYPES[row[0]]).reshape(row[1])
    return Response(outputs)


def _listen(stream: Any, answers: _Answers) -> None:
    """Put every message of the process into `answers`, then None when it ends or sends an invalid message."""
    with stream, suppress(OSError, EOFError, ValueError, KeyError, TypeError):
        while True:
            answers.put(receive(stream))
    answers.put(None)


ADAPTERS = "qrun.conform.adapters"
COMMAND, BATCH = "cmd:", "batch:"
PLACES = ("{model}", "{inputs}", "{outputs}")
"""Words of every ``cmd:`` command, which labels leave out."""


@frozen
class Runtime:
    """A runtime that can be judged. label: its name for users, without version.
    adapter: see `worker.main`; option: passed to the adapter."""

    name: str
    label: str
    adapter: str
    option: str = ""


RUNTIMES = {
    known.name: known
    for known in (
        Runtime("native", "qrun, native backend", f"{ADAPTERS}:Qrun", "native"),
        Runtime("reference", "qrun, reference backend", f"{ADAPTERS}:Qrun", "reference"),
        Runtime("ort", "onnxruntime, graph optimizations off", f"{ADAPTERS}:Ort"),
        Runtime("ort-optimized", "onnxruntime, graph optimizations on", f"{ADAPTERS}:Ort", "optimized"),
        Runtime(
            "ort-x64quantprecision", "onnxruntime, session.x64quantprecision", f"{ADAPTERS}:Ort", "x64quantprecision"
        ),
        Runtime("onnx-ref", "onnx.reference", f"{ADAPTERS}:OnnxReference"),
        Runtime("openvino", "OpenVINO, float32 precision", f"{ADAPTERS}:OpenVino"),
        Runtime("opencv", "OpenCV dnn", f"{ADAPTERS}:OpenCv"),
        Runtime("tinygrad", "tinygrad", f"{ADAPTERS}:TinyGrad"),
        Runtime("tract", "tract", f"{ADAPTERS}:Tract"),
        Runtime("iree", "IREE, llvm-cpu", f"{ADAPTERS}:Iree"),
    )
}
OWN = ("native", "reference")


def packages_of(name: str) -> str:
    """The pip packages of a runtime of RUNTIMES."""
    known = {"onnx-ref": "onnx", "opencv": "opencv-python", "iree": "iree-base-compiler[onnx] iree-base-runtime"}
    return "onnxruntime" if name.startswith("ort") else "onnx-qrun" if name in OWN else known.get(name, name)


def is_program(name: str) -> bool:
    """Does a name of --runtime name a program?"""
    return name.startswith((COMMAND, BATCH))


def runtime(name: str) -> Runtime:
    """The runtime of a name, or of a ``cmd:`` or ``batch:`` text. Raises CallError for other names."""
    if is_program(name):
        words = name.partition(":")[2].split()
        return Runtime(name, " ".join(word for word in words if word not in PLACES) or name, "")
    if name in RUNTIMES:
        return RUNTIMES[name]
    near = suggest(name, RUNTIMES)
    raise CallError(
        "QR005",
        f"--runtime {name}: unknown runtime",
        facts=[
            ("expected", f"{', '.join(RUNTIMES)}, or 'cmd:PROGRAM {{model}} {{inputs}} {{outputs}}', or batch:PROGRAM")
        ],
        fixes=[f"did you mean --runtime {near}?" if near else "qrun explain conform"],
    )
