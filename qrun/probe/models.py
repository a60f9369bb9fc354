"""Writes the probe as ONNX models, one for each form in which a toolchain may take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qrun.errors import CallError
from qrun.ir import Array
from qrun.ir.types import NUMBERS
from qrun.probe.design import APART, LENGTH, Branch, branches, signal

FORMS: Mapping[str, str] = {
    "qlinear": "QLinearConv, int8",
    "qdq": "DequantizeLinear, Conv, QuantizeLinear, int8",
    "qdq-uint8": "the same with uint8 activations",
    "matmul": "QLinearMatMul, int8",
    "shifts": "DequantizeLinear, Conv, QuantizeLinear, int8, with scales that are powers of two, for devices that only shift",
    "symmetric": "DequantizeLinear, Conv, QuantizeLinear, int8, with all zero points 0, for devices that have no others",
}
"""The forms by name."""
INTEGER_OPERATORS = ("qlinear", "matmul")


def form_branches(form: str) -> list[Branch]:
    """The branches that a form has: a matrix product has no bias and no padding, integer operators have no Relu, and
    shifts have no other multipliers."""
    made = [branch for branch in branches() if not branch.relu or form not in INTEGER_OPERATORS]
    if form == "matmul":
        return [branch for branch in made if branch.bias is None and branch.around is None]
    if form == "shifts":
        return [branch for branch in made if branch.ties or branch.name.startswith(APART)]
    if form == "symmetric":
        return [replace(branch, zero=0) for branch in made if not branch.offset]
    return made


def is_unsigned(form: str) -> bool:
    """Whether a form's activations are uint8."""
    return form.endswith("uint8")


def feed(form: str) -> Array:
    """The input ``x`` of a form: int8 or uint8, [1, LENGTH, 1, 1], or [1, LENGTH] of a matrix product."""
    codes = signal().astype(np.int16) + (128 if is_unsigned(form) else 0)
    shape = (1, LENGTH) if form == "matmul" else (1, LENGTH, 1, 1)
    return codes.astype(np.uint8 if is_unsigned(form) else np.int8).reshape(shape)


def model(form: str, asked: Sequence[Branch] | None = None) -> onnx.ModelProto:
    """Branches in a form, None for the form's own: input ``x``, an output for each branch under its name.

    Weights have one scale, or one for each row where `Scales.w` has.
    """
    writer = _Writer(form)
    for branch in form_branches(form) if asked is None else asked:
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
        weights = branch.weights.T.copy() if self.product else _kernel(branch)
        zero, zeros = np.asarray(branch.zero + self.shift, self.kind), np.zeros_like(branch.scales.w, np.int8)
        shape = [1, branch.sums.size] if self.product else [1, branch.sums.size, 1, 1]
        self.outputs.append(helper.make_tensor_value_info(branch.name, NUMBERS[zero.dtype], shape))
        pads: dict[str, Any] = {} if branch.around is None else {"pads": [1, 1, 1, 1]}
        if self.form in INTEGER_OPERATORS:
            values = [*self._x(branch), weights, branch.scales.w, zeros, branch.scales.y, zero]
            names = ["x", *self._constants(branch, values + ([] if branch.bias is None else [_int32(branch)]))]
            op = "QLinearMatMul" if self.product else "QLinearConv"
            self.nodes.append(helper.make_node(op, names, [branch.name], name=branch.name, **pads))
            return
        self._group(branch, weights, zero, pads)

    def _group(self, branch: Branch, weights: Array, zero: Array, pads: Mapping[str, Any]) -> None:
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
        last = f"{name}.conv"
        self.nodes.append(helper.make_node("Conv", floats, [last], name=last, **pads))
        if branch.relu:
            self.nodes.append(helper.make_node("Relu", [last], [f"{name}.relu"], name=f"{name}.relu"))
            last = f"{name}.relu"
        stored = self._constants(branch, [scales.y, zero], "y")
        self.nodes.append(helper.make_node("QuantizeLinear", [last, *stored], [name], name=name))

    def _x(self, branch: Branch) -> list[Any]:
        """Scale and zero point of the input."""
        return [branch.scales.x, np.asarray(self.shift + branch.offset, self.kind)]

    def _constants(self, branch: Branch, values: Sequence[Any], part: str = "p") -> list[str]:
        """Store values as constants; their names."""
        names = [f"{branch.name}.{part}{number}" for number in range(len(values))]
        self.constants += [
            numpy_helper.from_array(np.asarray(value), name) for value, name in zip(values, names, strict=True)
        ]
        return names


def _kernel(branch: Branch) -> Array:
    """The weights of a convolution: int8 [n, LENGTH, 1, 1], or [n, LENGTH, 3, 3] where some meet only padding."""
    if branch.around is None:
        return branch.weights[:, :, None, None]
    made = np.repeat(branch.around[:, :, None], 9, axis=2)
    made[:, :, 4] = branch.weights
    return made.reshape(-1, LENGTH, 3, 3)


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
