"""The child's adapter of onnx.reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

VERSION = onnx.__version__


class ReferenceSession:
    """A loaded model. folder: of its external data, "" if it has none."""

    def __init__(self, data: bytes, folder: str = "") -> None:
        start = perf_counter_ns()
        proto = onnx.load_model_from_string(bytes(data))
        if folder:
            onnx.load_external_data_for_model(proto, folder)
        self._session = ReferenceEvaluator(proto)
        self.told = {"ns": perf_counter_ns() - start}

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> tuple[list[Any], int]:
        """The requested outputs, and the time, ns."""
        call, start = self.call(feeds, names), perf_counter_ns()
        made, duration = call(), perf_counter_ns() - start
        return [_plain(value) for value in made], duration

    def call(self, feeds: Mapping[str, Any], names: Sequence[str]) -> Callable[[], list[Any]]:
        """The call of onnx.reference that `run` times."""

        def call() -> list[Any]:
            with np.errstate(all="ignore"):
                made = self._session.run(list(names), dict(feeds))
            return list(made)

        return call


def _plain(value: Any) -> Any:
    """An array, with texts as objects; a list of arrays; a value of another kind unchanged."""
    if value is None or isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        return value
    if isinstance(value, list):
        return [_plain(element) for element in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array
