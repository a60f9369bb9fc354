"""onnxruntime's quantizer, called so that its result does not depend on the machine."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime import quantization
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData, save_tensors_data

IR_VERSION = 8
FORMATS = {"qop": quantization.QuantFormat.QOperator, "qdq": quantization.QuantFormat.QDQ}


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, images: Sequence[np.ndarray]) -> None:
        self.feeds: Iterator[dict[str, np.ndarray]] = iter([{name: x} for x in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def static(
    model: onnx.ModelProto,
    kind: str,
    images: Sequence[np.ndarray] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    reduce_range: bool = False,
) -> onnx.ModelProto:
    """The model with uint8 activations and int8 weights, one scale per output channel. kind: qop or qdq.

    images: calibrated by running the float model; onnxruntime's sums depend on the processor, and so do the scales.
    ranges: or the smallest and largest value of each tensor.
    reduce_range: 7-bit weights, with which onnxruntime is right on processors without VNNI too.
    """

    def run(source: Path, target: Path) -> None:
        cache = None
        if ranges is not None:
            cache = source.with_name("ranges.json")
            single = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
            save_tensors_data(TensorsData(CalibrationMethod.MinMax, single), cache)
        quantization.quantize_static(
            source,
            target,
            Reader(model.graph.input[0].name, images),
            quant_format=FORMATS[kind],
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibration_cache_path=cache,
        )

    return _through_files(model, run)


def dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with int8 weights, and activations quantized while it runs."""

    def run(source: Path, target: Path) -> None:
        quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8)

    return _through_files(model, run)


def _through_files(model: onnx.ModelProto, run: Callable[[Path, Path], None]) -> onnx.ModelProto:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            source, target = Path(temporary) / "in.onnx", Path(temporary) / "out.onnx"
            onnx.save(model, source)
            run(source, target)
            made = onnx.load(target)
    finally:
        logging.disable(level)
    made.producer_name, made.producer_version, made.doc_string = "qrun", "", ""
    made.ir_version = IR_VERSION
    del made.metadata_props[:]
    return made
