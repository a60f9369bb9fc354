"""The child's adapter of onnxruntime, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnxruntime as ort

VERSION = ort.__version__
ort.set_default_logger_severity(4)

Array = np.ndarray[Any, np.dtype[Any]]
Fed = Mapping[str, tuple[Array, int]]
"""Feeds: an array and 0; for element types that numpy lacks, the bits in an array and the number of the ONNX type."""


class OrtSession:
    """A loaded model.

    optimize: let onnxruntime rewrite the graph. threads: 0 to let it choose. settings: entries of the session's
    configuration. profile: prefix of the profiler's files. optimized: file for the model that it actually runs.
    """

    def __init__(
        self,
        data: bytes,
        optimize: bool = True,
        threads: int = 0,
        settings: Mapping[str, str] | None = None,
        profile: str = "",
        optimized: str = "",
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        for name, value in (settings or {}).items():
            options.add_session_config_entry(f"session.{name}", value)
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        if optimized:
            options.optimized_model_filepath = optimized
        start = perf_counter_ns()
        self._session = ort.InferenceSession(bytes(data), options, providers=["CPUExecutionProvider"])
        outputs = {value.name: value.type for value in self._session.get_outputs()}
        self.told = {"ns": perf_counter_ns() - start, "outputs": outputs}

    def run(self, feeds: Fed, names: Sequence[str] | None = None, plain: bool = True) -> tuple[list[Any], int]:
        """The requested outputs, each with the number of its element type (0: that of the array); and the time, ns.

        plain: all of them have numpy's own types. An output that Python cannot read is None.
        """
        call, start = self.call(feeds, names, plain), perf_counter_ns()
        made, duration = call(), perf_counter_ns() - start
        if _as_arrays(feeds, plain):
            return [(array, 0) for array in made], duration
        return [(_numpy(value), value.element_type()) for value in made], duration

    def call(self, feeds: Fed, names: Sequence[str] | None = None, plain: bool = True) -> Callable[[], Any]:
        """The call of onnxruntime that `run` times: it returns arrays if all types are numpy's own, else OrtValues."""
        if _as_arrays(feeds, plain):
            return partial(self._session.run, names, {name: array for name, (array, _) in feeds.items()})
        values = {name: _value(*given) for name, given in feeds.items()}
        return partial(self._session.run_with_ort_values, names, values)

    def finish(self) -> str:
        """Ends profiling and returns the path of the profile."""
        return str(self._session.end_profiling())


def _as_arrays(feeds: Fed, plain: bool) -> bool:
    """Whether all types, of feeds and of outputs, are numpy's own."""
    return plain and not any(number for _, number in feeds.values())


def _value(array: Array, number: int) -> Any:
    """An array as OrtValue; `number` is ONNX's number of a type that numpy lacks, or 0."""
    if number:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _numpy(value: Any) -> Any:
    """The array of an OrtValue; None if it has none."""
    try:
        return value.numpy()
    except RuntimeError:
        return None
