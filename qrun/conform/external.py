"""Any program as a runtime: it is started for each case, with a folder of tensors in ONNX's own layout."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter

from qrun.conform.answers import CRASHED, HUNG, REFUSED, UNSUPPORTED, Response
from qrun.conform.process import ending
from qrun.conform.suite import Case
from qrun.errors import CallError, QrunError
from qrun.ir import Array
from qrun.memory import Budget

WORDS = ("model", "inputs", "outputs")
REFUSES, LACKS = 2, 3
"""Exit codes of a program that refuses a model, and of one that has no such operator or type."""
_ROOM = 1 << 20
"""Bytes of an output that a program may write beyond twice the expected outputs."""
_PIECE = 1 << 16
"""The most bytes that one read of stderr takes."""


class CommandRunner:
    """``cmd:PROGRAM {model} {inputs} {outputs}``.

    model:   path of an .onnx file. inputs: a folder with input_0.pb, input_1.pb, ..., one TensorProto each, in the
             order of the graph's inputs. outputs: an empty folder,
             into which the program writes output_0.pb, output_1.pb, ...
    Raises CallError if the text names none of these places, or no program.
    """

    version = ""

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise _bad(text, str(error)) from None
        if not self._words or not all(any(f"{{{word}}}" in part for part in self._words) for word in WORDS):
            raise _bad(text, "it names not all of {model}, {inputs} and {outputs}")

    def run(self, case: Case, limit: float) -> Response:
        """In a new process group, which is ended as a whole when the time is over."""
        with tempfile.TemporaryDirectory(prefix="qrun-") as name:
            folder = Path(name)
            write_case(case, folder, outputs=False)
            (folder / "out").mkdir()
            places = {"model": folder / "model.onnx", "inputs": folder / "test_data_set_0", "outputs": folder / "out"}
            command = [part.format(**places) if "{" in part else part for part in self._words]
            try:
                done, told = _called(command, limit)
            except OSError as error:
                raise _bad(command[0], f"{error.strerror or error}: {command[0]}") from None
            if done is None:
                return Response({}, HUNG, f"no answer in {limit:g} s")
            if done:
                kind = {REFUSES: REFUSED, LACKS: UNSUPPORTED}.get(done, CRASHED)
                return Response(
                    {}, kind, told if kind != CRASHED and told else f"{ending(done)}{f': {told}' if told else ''}"
                )
            return _outputs(case, folder / "out")

    def close(self) -> None:
        """Nothing runs between cases."""


def write_case(case: Case, folder: Path, outputs: bool = True) -> None:
    """``model.onnx`` and ``test_data_set_0`` with its tensors, as onnx.backend.test reads them."""
    from qrun.ir.tensorfile import tensor_bytes

    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(case.model)
    for kind, arrays in (("input", case.inputs), ("output", case.expected if outputs else {})):
        for place, (name, array) in enumerate(arrays.items()):
            (data / f"{kind}_{place}.pb").write_bytes(tensor_bytes(array, name))


def _called(command: list[str], limit: float) -> tuple[int | None, str]:
    """The exit code, None if the time was over; and the last line on stderr."""
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
    from qrun.ir.tensorfile import read_tensor

    found: dict[str, Array | None] = {}
    budget = Budget(_ROOM + 2 * sum(array.nbytes for array in case.expected.values()))
    for place, name in enumerate(case.expected or ["y0"]):
        path = folder / f"output_{place}.pb"
        if not path.exists():
            found[name] = None
            continue
        try:
            found[name] = read_tensor(path, budget)[1]
        except QrunError as error:
            return Response({}, CRASHED, f"output_{place}.pb is no tensor: {error.message}")
        except Exception as error:
            return Response({}, CRASHED, f"output_{place}.pb is no tensor: {type(error).__name__}")
    return Response(found)


def _bad(text: str, got: str) -> CallError:
    return CallError(
        "QR005",
        f"--runtime cmd:{text[:80]}: this is no command that can run cases",
        facts=[("expected", "cmd:PROGRAM {model} {inputs} {outputs}"), ("got", got)],
        fixes=["qrun explain conform has the protocol"],
    )
