"""The runtimes that can be judged, by name, and the runners of cases: a child process, or any program."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import IO, Any, Protocol

import numpy as np

import qrun
from qrun.conform.suite import Case, write_case
from qrun.conform.worker import receive, send
from qrun.declare.frozen import frozen
from qrun.errors import CallError, QrunError, UnsupportedError, suggest
from qrun.ir import Array
from qrun.ir.tensorfile import read_tensor
from qrun.ir.types import DTYPES, NUMBERS
from qrun.memory import Budget

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
    """Runs cases in an adapter in a child process. adapter: see `worker.main`; option: passed to the adapter;
    python: the interpreter, "" for this one.

    Raises UnsupportedError if the runtime cannot be imported there.
    """

    def __init__(self, name: str, adapter: str, option: str, python: str = "") -> None:
        self.name, self.adapter, self.option, self.python = name, adapter, option, python
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
            process.kill()
            process.wait()
            for stream in (process.stdin, self._log):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        """Start the process that runs cases."""
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
            raise self._missing_error(f"{command[0]} cannot be started: {error}") from None
        Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            answer = self._answers.get(timeout=STARTING)
        except Empty:
            answer = ({"missing": f"it does not start within {STARTING:g} s"}, [])
        told = answer[0] if answer else {"missing": self._describe_end()}
        if "version" not in told:
            self.close()
            raise self._missing_error(str(told.get("missing", "its answer cannot be read")))
        self.version = str(told["version"])
        self.facts = {name: told[name] for name in ("python", "wheel", "options")}

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
        """Text: how the process ended, and the last line on its stderr."""
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


PLACES = ("{model}", "{inputs}", "{outputs}")
"""Words of every command, which labels leave out."""
REFUSES, LACKS = 2, 3
"""Exit codes of a program that refuses a model, and of one that does not have the operator or type."""
_ROOM = 1 << 20
"""Bytes that a program may write beyond twice the size of the expected outputs."""
_PIECE = 1 << 16
"""The most bytes of one read of stderr."""


class CommandRunner:
    """Runs cases in a program: ``cmd:PROGRAM {model} {inputs} {outputs}``.

    model:   path of an .onnx file. inputs: a folder with input_0.pb, input_1.pb, ..., one TensorProto each, in the
             order of the graph's inputs. outputs: an empty folder, into which the program writes output_0.pb, ...
    Raises CallError if the text does not name all of these places and a program.
    """

    version = ""
    facts: Mapping[str, Any] = {}

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise _bad_command(text, str(error)) from None
        missing = [place for place in PLACES if not any(place in part for part in self._words)]
        if missing:
            other = [place for place in re.findall(r"\{\w*\}", text) if place not in PLACES]
            raise _bad_command(text, f"no {', '.join(missing)}" + (f", but {', '.join(other)}" if other else ""))

    def run(self, case: Case, limit: float) -> Response:
        """Run one case in a new process group, which is killed as a whole when the time is over."""
        with tempfile.TemporaryDirectory(prefix="qrun-") as name:
            folder = Path(name)
            write_case(case, folder)
            (folder / "out").mkdir()
            paths = (folder / "model.onnx", folder / "test_data_set_0", folder / "out")
            places = dict(zip(PLACES, map(str, paths), strict=True))
            command = self._words
            for place, path in places.items():
                command = [part.replace(place, path) for part in command]
            try:
                done, told = _run_command(command, limit)
            except OSError as error:
                raise _bad_command(command[0], f"{error.strerror or error}: {command[0]}") from None
            for place, path in places.items():
                told = told.replace(path, place)
            if done is None:
                return Response({}, HUNG, f"no answer in {limit:g} s")
            if done:
                kind = {REFUSES: REFUSED, LACKS: UNSUPPORTED}.get(done, CRASHED)
                return Response(
                    {}, kind, told if kind != CRASHED and told else f"{exit_text(done)}{f': {told}' if told else ''}"
                )
            return _outputs(case, folder / "out")

    def close(self) -> None:
        """Do nothing, as nothing runs between cases."""


def _run_command(command: list[str], limit: float) -> tuple[int | None, str]:
    """Run a command. Returns its exit code, None if the time was over, and the last line on its stderr."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    last: deque[bytes] = deque(maxlen=2)  # a program may write to stderr without end
    reader = Thread(
        target=last.extend, args=(iter(partial(os.read, process.stderr.fileno(), _PIECE), b""),), daemon=True
    )
    reader.start()
    end = perf_counter() + limit
    reader.join(limit)
    try:
        process.wait(max(end - perf_counter(), 0))
        hung = reader.is_alive()
    except subprocess.TimeoutExpired:
        hung = True
    if hung:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        reader.join(1)
    if not reader.is_alive():  # else a process that left the group holds the other end of the pipe
        process.stderr.close()
    if hung:
        return None, ""
    lines = [line for line in b"".join(last).decode(errors="replace").splitlines() if line.strip()]
    return process.returncode, " ".join(lines[-1].split())[:400] if lines else ""


def _outputs(case: Case, folder: Path) -> Response:
    """A case's response from the files that a command wrote."""

    found: dict[str, Array | None] = {}
    budget = Budget(_ROOM + 2 * sum(array.nbytes for array in case.expected.values()))
    for index, name in enumerate(case.expected or ["y0"]):
        path = folder / f"output_{index}.pb"
        if not path.exists():
            found[name] = None
            continue
        try:
            found[name] = read_tensor(path, budget)[1]
        except QrunError as error:
            return Response({}, CRASHED, f"output_{index}.pb is not a tensor: {error.message}")
        except Exception as error:
            return Response({}, CRASHED, f"output_{index}.pb is not a tensor: {type(error).__name__}")
    return Response(found)


def _bad_command(text: str, got: str) -> CallError:
    """The QR005 error of a --runtime cmd: option."""
    return CallError(
        "QR005",
        f"--runtime cmd:{text[:80]}: this command cannot run cases",
        facts=[("expected", "cmd:PROGRAM {model} {inputs} {outputs}"), ("got", got)],
        fixes=["qrun explain conform has the protocol"],
    )


ADAPTERS = "qrun.conform.adapters"
COMMAND = "cmd:"


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
        Runtime("tinygrad", "tinygrad, DEV=PYTHON", f"{ADAPTERS}:TinyGrad"),
        Runtime("iree", "IREE, llvm-cpu", f"{ADAPTERS}:Iree"),
    )
}
OWN = ("native", "reference")


def packages_of(name: str) -> str:
    """The pip packages of a runtime of RUNTIMES."""
    known = {"onnx-ref": "onnx", "opencv": "opencv-python", "iree": "iree-base-compiler iree-base-runtime"}
    return "onnxruntime" if name.startswith("ort") else "onnx-qrun" if name in OWN else known.get(name, name)


def runtime(name: str) -> Runtime:
    """The runtime of a name, or of a ``cmd:`` text. Raises CallError for other names."""
    if name.startswith(COMMAND):
        words = name.removeprefix(COMMAND).split()
        return Runtime(name, " ".join(word for word in words if word not in PLACES) or name, "")
    if name in RUNTIMES:
        return RUNTIMES[name]
    near = suggest(name, RUNTIMES)
    raise CallError(
        "QR005",
        f"--runtime {name}: unknown runtime",
        facts=[("expected", f"{', '.join(RUNTIMES)}, or 'cmd:PROGRAM {{model}} {{inputs}} {{outputs}}'")],
        fixes=[f"did you mean --runtime {near}?" if near else "qrun explain conform"],
    )


def runner(chosen: Runtime, python: str = "") -> CaseRunner:
    """Start a runner of a runtime. Raises UnsupportedError if the runtime is not installed."""
    if chosen.name.startswith(COMMAND):
        return CommandRunner(chosen.name.removeprefix(COMMAND))
    return ProcessRunner(chosen.name, chosen.adapter, chosen.option, python)
