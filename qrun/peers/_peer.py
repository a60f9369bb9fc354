"""A model in another runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns

import numpy as np

from qrun.errors import RunError, UnsupportedError
from qrun.ir import Array, Model
from qrun.peers._common import instead, proto_of, words
from qrun.peers._ort import ort_runner
from qrun.peers._reference import reference_runner
from qrun.profiling import Profile, Progress, measure
from qrun.session import RunResult

PEERS = ("ort", "onnx-ref")


class Peer:
    """A model ready to run in another runtime.

    backend:  ``ort`` (onnxruntime on the CPU) or ``onnx-ref`` (onnx.reference).
    data:     the bytes of the file, for a model that was not read from a path.
    outputs:  names of any tensors that nodes make, besides the graph's outputs.
    optimize: let onnxruntime rewrite the graph as it does by default, or run it node by node as written.
    label:    the runtime with its version, for the header of a report.

    Raises UnsupportedError if the runtime is not installed or refuses the model.
    """

    def __init__(
        self,
        model: Model,
        backend: str,
        *,
        data: bytes | None = None,
        outputs: Sequence[str] = (),
        threads: int | None = None,
        optimize: bool = True,
    ) -> None:
        self.model = model
        self.backend = backend
        self.outputs = tuple(dict.fromkeys(outputs)) or tuple(v.name for v in model.outputs)
        proto = proto_of(model, data, self.outputs)
        start = perf_counter_ns()
        made = (
            ort_runner(model, proto, self.outputs, threads, optimize)
            if backend == "ort"
            else reference_runner(model, proto, self.outputs)
        )
        self.label, self._run = made
        self.load_ns = perf_counter_ns() - start

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once, as Session.execute does, but without node events and with nothing to observe.

        outputs: some of those that the peer was made for. Raises RunError with the runtime's own words,
        UnsupportedError for element types that cannot be handed over.
        """
        start = perf_counter_ns()
        try:
            arrays = self._run(feeds)
        except UnsupportedError as error:
            error.where = (self.model.label,)
            raise
        except Exception as error:
            raise RunError(
                "QR011",
                "backend-failed",
                f"{self.label} failed on this model",
                where=[self.model.label],
                facts=[("got", words(error))],
                fixes=instead(self.model),
            ) from error
        duration = perf_counter_ns() - start
        named = dict(zip(self.outputs, map(np.asarray, arrays), strict=True))
        return RunResult({name: named[name] for name in outputs or self.outputs}, (), duration, 0, start)

    def profile(
        self,
        feeds: Mapping[str, Array],
        *,
        runs: int | None = None,
        warmup: int = 1,
        seconds: float = 3.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run repeatedly; the profile has no samples of nodes."""
        return measure(lambda: self.execute(feeds), self.model, runs, warmup, seconds, progress)
