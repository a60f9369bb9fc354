"""onnx.reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from qrun.ir import Array, Model
from qrun.ir.types import NUMBERS
from qrun.peers._common import Runner, refused, runtime_label


def reference_runner(model: Model, proto: onnx.ModelProto, outputs: Sequence[str]) -> tuple[str, Runner]:
    label = runtime_label("onnx-ref")
    try:
        from onnx.reference import ReferenceEvaluator

        if model.path is not None and model.external_files:
            onnx.load_external_data_for_model(proto, str(model.path.parent))
        session = ReferenceEvaluator(proto)
    except Exception as error:
        raise refused(label, model, error) from error

    def run(feeds: Mapping[str, Array]) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return [_typed(a) for a in session.run(list(outputs), dict(feeds))]

    return label, run


def _typed(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype not in NUMBERS and array.dtype.kind in "US":
        return array.astype(object)
    return array
