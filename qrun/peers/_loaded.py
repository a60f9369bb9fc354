"""Shared code of the other runtimes: a model loaded in the child process, its bytes, labels, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NoReturn

import onnx

from qrun.child import Crash, Failed, RemoteObject, Slow, alone, current_child
from qrun.declare.frozen import frozen
from qrun.declare.stored import parts
from qrun.errors import MemoryLimitError, QrunError, RunError, UnsupportedError
from qrun.ir import Array, Model
from qrun.ir.load import parse, read_file
from qrun.memory import human, out_of_time
from qrun.running.plan import plan
from qrun.running.profiling import NOTHING, Burst, TimedRunner, processor_time


def proto_of(model: Model, data: bytes | None, outputs: Sequence[str]) -> onnx.ModelProto:
    """The file's ModelProto, with these tensors added to the graph's outputs."""
    proto = parse(_data_of(model, data), model.label)
    present = {v.name for v in proto.graph.output}
    for name in outputs:
        if name not in present:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return proto


def bytes_of(model: Model, data: bytes | None, outputs: Sequence[str]) -> bytes:
    """The bytes of the file, or of `proto_of` if the file does not have all these outputs."""
    if {value.name for value in model.outputs} >= set(outputs):
        return _data_of(model, data)
    return proto_of(model, data, outputs).SerializeToString()


def _data_of(model: Model, data: bytes | None) -> bytes:
    """The model's bytes; read from its file if not given."""
    if data is None:
        assert model.path is not None
        data = read_file(model.path)
    return data


def runtime_label(backend: str, optimize: bool = True) -> str:
    """The runtime's name with its version and graph optimizations. Raises UnsupportedError if it is not installed."""
    if backend == "onnx-ref":
        return f"onnx.reference {onnx.__version__}"
    if find_spec("onnxruntime") is None:
        raise missing_error("onnxruntime is not installed")
    return f"onnxruntime {_version()} (CPU, graph optimizations {'on' if optimize else 'off'})"


@cache
def _version() -> str:
    """The version of onnxruntime, as it reports it; "of unknown version" if importing it crashes."""
    try:
        return str(current_child().ask("version", "ort"))
    except Failed as error:
        raise missing_error("onnxruntime cannot be imported", [("got", shorten_error(error))]) from error
    except Crash:
        return "of unknown version"


def missing_error(message: str, facts: Sequence[tuple[str, str]] = ()) -> UnsupportedError:
    """The QR012 error of a runtime that is not installed."""
    fixes = ["pip install 'onnx-qrun[ort]'", "onnx-ref in place of ort works without them"]
    return UnsupportedError("QR012", message, facts=facts, fixes=fixes)


def unfit_error(message: str) -> UnsupportedError:
    """The QR013 error of a model that the runtime cannot run."""
    return UnsupportedError("QR013", message, fixes=["--backend reference runs the model with qrun"])


def instead(model: Model) -> list[str]:
    """The fix to use qrun's own backend; empty if that cannot run the model."""
    try:
        plan(model)
    except QrunError:
        return []
    return ["--backend reference runs the model with qrun"]


def shorten_error(error: Exception) -> str:
    """The beginning of an error's text."""
    return str(error)[:400]


FORMS = 4
"""The number of copies of the weights that a runtime may hold while loading: the file, its parts, tensors, packed."""
STACK = 16 * 2**20
"""Bytes of stack for each thread."""

Limits = tuple[int | None, float | None]
"""Bytes that a run may take on top of the runtime's own, and seconds; None for no limit."""


@frozen
class Loaded:
    """A model loaded by a runtime in the child process.

    label:  the runtime, for messages. limits: those of a run.
    remote: the object in the child process. how: the last arguments of a request to run it.
    encode: converts feeds before they are sent. decode: converts outputs that come back.
    """

    model: Model
    label: str
    limits: Limits
    remote: RemoteObject
    how: tuple[Any, ...]
    encode: Callable[[Mapping[str, Array]], Any]
    decode: Callable[[Sequence[Any]], Sequence[Any]]

    def run(self, feeds: Mapping[str, Array]) -> tuple[Sequence[Any], int]:
        """Run once. Returns the outputs, and the time in the runtime in ns.

        Raises RunError, UnsupportedError for element types that cannot be passed.
        """
        try:
            encoded = self.encode(feeds)
            made, duration = self._ask("run", lambda: (encoded, True))
            return self.decode(made), int(duration)
        except UnsupportedError as error:
            error.where = (self.model.label,)
            raise

    def runner(self, feeds: Mapping[str, Array], settle: float = 0.0, most: int | None = None) -> TimedRunner:
        """A runner of many runs; feeds and outputs stay in the child process. Raises as `run` does."""
        try:
            encoded = self.encode(feeds)
            held = RemoteObject("hold", lambda: (encoded,))
        except UnsupportedError as error:
            error.where = (self.model.label,)
            raise
        except (Failed, Crash) as error:
            self._run_failed(error)

        def burst(times: int) -> Burst:
            spent, on = self._ask("repeat", lambda: (held.handle, times), times)
            return Burst(spent, NOTHING, processor_time(on))

        return TimedRunner(burst, self.model, most=most, settle=settle)

    def finish(self) -> str:
        """End a runtime's own profiling and return the path of its file. Raises RunError."""
        try:
            with alone():
                return str(current_child().ask("finish", self.remote.handle))
        except (Failed, Crash) as error:
            self._run_failed(error)

    def _ask(self, request: str, given: Callable[[], tuple[Any, ...]], times: int = 1) -> Any:
        """Send a request to run and return the child's answer. given: returns the arguments between the memory limit
        and `how`: feeds, or the handle of held feeds. times: the number of runs."""
        memory, seconds = self.limits
        with alone():
            try:
                handle = self.remote.handle
            except (Failed, Crash) as error:
                load_failed(self.label, self.model, error, memory)
            try:
                limit = None if seconds is None else seconds * times
                return current_child().ask(request, handle, memory, *given(), *self.how, seconds=limit)
            except Slow:
                late = out_of_time(seconds or 0)
                late.where = (self.model.label, f"in {self.label}")
                raise late from None
            except (Failed, Crash) as error:
                if error.memory:
                    self.remote.forget()
                self._run_failed(error)

    def _run_failed(self, error: Failed | Crash) -> NoReturn:
        """Raise RunError with the runtime's message, or because it crashed; or MemoryLimitError."""
        _stop(self.label, "running", self.model, error, self.limits[0])
        raise RunError(
            "QR011",
            f"{self.label} failed on this model",
            where=[self.model.label],
            facts=[("got", shorten_error(error))],
            fixes=instead(self.model),
        ) from error


def loading_limit(limit: int | None, model: Model, threads: int | None = None) -> int | None:
    """The memory limit of loading if that of runs is `limit`: it adds several copies of the weights, and the stacks of
    threads."""
    if limit is None:
        return None
    weights = sum(part.nbytes for part in parts(model.constants).values())
    return limit + FORMS * weights + STACK * max(threads or 0, os.cpu_count() or 1)


def load_failed(label: str, model: Model, error: Failed | Crash, limit: int | None = None) -> NoReturn:
    """Raise UnsupportedError with the runtime's message, RunError if it crashed, or MemoryLimitError."""
    _stop(label, "loading", model, error, limit)
    raise UnsupportedError(
        "QR013",
        f"{label} cannot load this model",
        where=[model.label],
        facts=[("got", shorten_error(error))],
        fixes=instead(model),
    ) from error


def _stop(label: str, doing: str, model: Model, error: Failed | Crash, limit: int | None) -> None:
    """Raise MemoryLimitError if the runtime exceeded the limit, RunError if it crashed."""
    if error.memory and limit is not None:
        raise MemoryLimitError(
            "QR010",
            f"{label} needs more memory than allowed while {doing} this model",
            where=[model.label],
            facts=[("got", shorten_error(error)), ("allowed", f"{human(limit)} on top of the runtime and its weights")],
            fixes=["--max-memory with a larger SIZE to try anyway"],
        ) from error
    if isinstance(error, Crash):
        raise RunError(
            "QR015",
            f"{label} {error} while {doing} this model",
            where=[model.label],
            facts=[("got", f"{error.sign}{f': {error.last}' if error.last else ''}"[:400])],
            fixes=[*instead(model), "qrun compare runs the nodes one by one: it shows which one it is"],
        ) from error
