"""Writes branches of the probe as a TFLite model, an operator each. Runs where ai-edge-litert is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TYPES = {"int8": 9, "int32": 2}
RELU = 1


class Model:
    """A model in the making. inputs: what each input of the model takes, by name."""

    def __init__(self) -> None:
        self._s = importlib.import_module("ai_edge_litert.schema_py_generated")
        self._model, self._graph = self._s.ModelT(), self._s.SubGraphT()
        self._model.version, self._model.subgraphs = 3, [self._graph]
        self._model.operatorCodes, self._model.buffers = [], [self._s.BufferT()]
        self._graph.tensors, self._graph.inputs, self._graph.outputs, self._graph.operators = [], [], [], []
        self.inputs: dict[str, Array] = {}

    def add(self, name: str, job: Mapping[str, Array], operator: str) -> None:
        """Add a branch. operator: conv, with a scale of the weights for each row; fc, with one scale; or depthwise,
        whose sums are its bias."""
        n, sx, sw, sy = job["sums"].size, float(job["sx"]), job["sw"], float(job["sy"])
        bias, x, offset = job.get("bias", np.zeros(n)), job["x"].reshape(1, -1), int(job["offset"])
        weights, axis = job["weights"], 0
        if operator == "depthwise":
            bias, x, weights, axis = job["sums"], np.full((1, n), offset), np.ones((1, n)), 3
        if operator != "fc":
            sw, x, weights = np.broadcast_to(sw, n), x[:, None, None], weights[:, None, None]
        if "around" in job:
            around = job["around"][:, None, None]
            weights = np.concatenate([around] * 4 + [weights] + [around] * 4, axis=2).reshape(n, 3, 3, -1)
        self.inputs[f"{name}.x"] = x.astype(np.int8)
        first = self._tensor(f"{name}.x", x.shape, "int8", sx, offset)
        second = self._tensor(f"{name}.w", weights.shape, "int8", sw, 0, weights, axis)
        third = self._tensor(f"{name}.b", (n,), "int32", np.float32(sx) * np.asarray(sw, np.float32), 0, bias)
        last = self._tensor(name, (1, n) if operator == "fc" else (1, 1, 1, n), "int8", sy, int(job["zero"]))
        self._graph.inputs.append(first)
        self._graph.outputs.append(last)
        self._operator(operator, [first, second, third], last, RELU if "relu" in job else 0)

    def content(self) -> bytes:
        """The file."""
        builder = importlib.import_module("flatbuffers").Builder(1 << 20)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _operator(self, operator: str, operands: list[int], result: int, activation: int) -> None:
        s, made = self._s, self._s.OperatorT()
        kind, options, version = {
            "conv": ("Conv2DOptions", s.Conv2DOptionsT(), 3),
            "depthwise": ("DepthwiseConv2DOptions", s.DepthwiseConv2DOptionsT(), 3),
            "fc": ("FullyConnectedOptions", s.FullyConnectedOptionsT(), 4),
        }[operator]
        if operator != "fc":
            options.padding, options.strideW, options.strideH = 0, 1, 1  # SAME
            options.dilationWFactor = options.dilationHFactor = options.depthMultiplier = 1
        options.fusedActivationFunction = activation
        code = s.OperatorCodeT()
        names = {"conv": "CONV_2D", "depthwise": "DEPTHWISE_CONV_2D", "fc": "FULLY_CONNECTED"}
        code.builtinCode = code.deprecatedBuiltinCode = getattr(s.BuiltinOperator, names[operator])
        code.version = version
        self._model.operatorCodes.append(code)
        made.opcodeIndex, made.inputs, made.outputs = len(self._model.operatorCodes) - 1, operands, [result]
        made.builtinOptionsType, made.builtinOptions = getattr(s.BuiltinOptions, kind), options
        self._graph.operators.append(made)

    def _tensor(
        self, name: str, shape: Any, kind: str, scale: Any, zero: int, data: Array | None = None, axis: int = 0
    ) -> int:
        """Add a tensor, constant if it has data; its number."""
        made, quantized = self._s.TensorT(), self._s.QuantizationParametersT()
        made.name, made.shape, made.type, made.buffer = name, [int(d) for d in shape], TYPES[kind], 0
        if data is not None:
            buffer = self._s.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).astype(kind).tobytes(), np.uint8)
            self._model.buffers.append(buffer)
            made.buffer = len(self._model.buffers) - 1
        quantized.scale = [float(v) for v in np.atleast_1d(scale)]
        quantized.zeroPoint, quantized.quantizedDimension = [zero] * len(quantized.scale), axis
        made.quantization = quantized
        self._graph.tensors.append(made)
        return len(self._graph.tensors) - 1
