"""Writes the probe as ONNX models, one for each form in which a toolchain may take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qrun.errors import CallError
from qrun.ir import Array
from qrun.ir.types import NUMBERS
from qrun.probe.design import LENGTH, Branch, branches, signal

FORMS: Mapping[str, str] = {
    "qlinear": "QLinearConv, int8",
    "qdq": "DequantizeLinear, Conv, QuantizeLinear, int8",
    "qdq-uint8": "the same with uint8 activations",
    "matmul": "QLinearMatMul, int8",
    "shifts": "DequantizeLinear, Conv, QuantizeLinear, int8, with scales that are powers of two, for devices that only shift",
}
"""The forms by name."""


def form_branches(form: str) -> list[Branch]:
    """The branches that a form has: a matrix product has no bias, and shifts have no other multipliers."""
    if form == "matmul":
        return [branch for branch in branches() if branch.bias is None]
    if form == "shifts":
        return [branch for branch in branches() if branch.ties or branch.name.startswith(("width", "ends", "pairs"))]
    return list(branches())


def is_unsigned(form: str) -> bool:
    """Whether a form's activations are uint8."""
    return form.endswith("uint8")


def feed(form: str) -> Array:
    """The input ``x`` of a form: int8 or uint8, [1, LENGTH, 1, 1], or [1, LENGTH] of a matrix product."""
    codes = signal().astype(np.int16) + (128 if is_unsigned(form) else 0)
    shape = (1, LENGTH) if form == "matmul" else (1, LENGTH, 1, 1)
    return codes.astype(np.uint8 if is_unsigned(form) else np.int8).reshape(shape)


def model(form: str) -> onnx.ModelProto:
    """The probe in a form: input ``x``, an output for each branch under its name."""
    writer = _Writer(form)
    for branch in form_branches(form):
        writer.add(branch)
    x = feed(form)
    inputs = [helper.make_tensor_value_info("x", NUMBERS[x.dtype], x.shape)]
    graph = helper.make_graph(writer.nodes, f"probe-{form}", inputs, writer.outputs, writer.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class _Writer:
    """The nodes, constants and outputs of a model in the making."""

    def __init__(self, form: str) -> None:
        self.form, self.product = form, form == "matmul"
        self.kind: Any = np.uint8 if is_unsigned(form) else np.int8
        self.shift = 128 if is_unsigned(form) else 0
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, branch: Branch) -> None:
        """Write a branch: one node, or a group of DequantizeLinear, Conv and QuantizeLinear."""
        weights = branch.weights.T.copy() if self.product else branch.weights[:, :, None, None]
        zero = np.asarray(branch.zero + self.shift, self.kind)
        shape = [1, branch.sums.size] if self.product else [1, branch.sums.size, 1, 1]
        self.outputs.append(helper.make_tensor_value_info(branch.name, NUMBERS[zero.dtype], shape))
        if self.form in ("qlinear", "matmul"):
            values = [*self._x(branch), weights, branch.scales.w, np.int8(0), branch.scales.y, zero]
            names = ["x", *self._constants(branch, values + ([] if branch.bias is None else [_int32(branch)]))]
            op = "QLinearMatMul" if self.product else "QLinearConv"
            self.nodes.append(helper.make_node(op, names, [branch.name], name=branch.name))
            return
        self._group(branch, weights, zero)

    def _group(self, branch: Branch, weights: Array, zero: Array) -> None:
        """Write a branch as DequantizeLinear, Conv and QuantizeLinear."""
        name, scales = branch.name, branch.scales
        operands: list[tuple[str, list[Any]]] = [("x", self._x(branch)), ("w", [weights, scales.w, np.int8(0)])]
        if branch.bias is not None:
            operands.append(("b", [_int32(branch), np.asarray(scales.x * scales.w), np.int32(0)]))
        floats = []
        for part, values in operands:
            stored = self._constants(branch, values, part)
            floats.append(f"{name}.{part}")
            inputs = stored if part != "x" else ["x", *stored]
            self.nodes.append(helper.make_node("DequantizeLinear", inputs, [floats[-1]], name=floats[-1]))
        self.nodes.append(helper.make_node("Conv", floats, [f"{name}.conv"], name=f"{name}.conv"))
        stored = self._constants(branch, [scales.y, zero], "y")
        self.nodes.append(helper.make_node("QuantizeLinear", [f"{name}.conv", *stored], [name], name=name))

    def _x(self, branch: Branch) -> list[Any]:
        """Scale and zero point of the input."""
        return [branch.scales.x, np.asarray(self.shift, self.kind)]

    def _constants(self, branch: Branch, values: Sequence[Any], part: str = "p") -> list[str]:
        """Store values as constants; their names."""
        names = [f"{branch.name}.{part}{number}" for number in range(len(values))]
        self.constants += [
            numpy_helper.from_array(np.asarray(value), name) for value, name in zip(values, names, strict=True)
        ]
        return names


def _int32(branch: Branch) -> Array:
    assert branch.bias is not None
    return branch.bias.astype(np.int32)


def write(folder: Path) -> list[Path]:
    """Write the models, their inputs and a README into a folder; returns the paths. Raises CallError."""
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for form in FORMS:
            path = folder / f"probe-{form}.onnx"
            path.write_bytes(model(form).SerializeToString(deterministic=True))
            np.save(folder / f"probe-{form}.npy", feed(form))
            made.append(path)
        (folder / "README.md").write_text(_readme(), encoding="utf-8")
    except OSError as error:
        raise CallError("QR008", f"cannot write to {folder}: {error.strerror or error}", where=[str(folder)]) from None
    return made


def _readme() -> str:
    rows = "\n".join(f"- `probe-{form}.onnx`: {text}" for form, text in FORMS.items())
    return f"""# Probe of an integer arithmetic

{rows}

1. Convert one of the models for the device, as you convert your own. The input of `probe-NAME.onnx` is `probe-NAME.npy`;
   it is quantized already, so that no calibration is needed.
2. Run it once and save every output under its name: one `.npz`, or a folder of `.npy` files. Raw integers are best;
   dequantized floats, channels-last layouts and padded channels are understood too.
3. `qrun probe --read DUMP` names the arithmetic. Outputs that are missing cost certainty, not the answer.
"""
