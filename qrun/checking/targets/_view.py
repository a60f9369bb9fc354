"""Changes a graph as a target does before it looks for quantized groups: it drops activations that a QuantizeLinear
repeats, and spreads scales over operators that only move values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.checking.rules._scope import Scope, Shape, static_shape
from qrun.ir import Array, Node
from qrun.ir.types import ONNX_NAMES
from qrun.ops import quantizers

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
BOTH = (QUANTIZE, DEQUANTIZE)
_STORES = (*BOTH, "Identity", "Transpose", "Reshape")


@dataclass(eq=False)
class Op:
    """A node of the view, whose inputs and outputs may differ from the file.

    node:   the file's node; None if the target adds it. spread: is it a QuantizeLinear that the target adds after an
            operator whose input is dequantized?
    """

    op_type: str
    inputs: list[str]
    outputs: list[str]
    node: Node | None = None
    domain: str = ""
    spread: bool = False
    integer: bool = False
    """Is it an operator on codes, such as QLinearConv?"""


def _on_codes(node: Node) -> bool:
    """Does a node of an integer operator compute on codes?"""
    return node.op_type not in BOTH and bool(quantizers(node))


class TargetView:
    """One graph of a model after the target's `Preparation`.

    found: a cache of the facts of tensors.
    fused: the results of activations that the target computes together with the operator before them, by the result of
           that operator.
    """

    def __init__(self, scope: Scope, preparation: Preparation) -> None:
        self.scope = scope
        self.ops = [
            Op(node.op_type, list(node.inputs), list(node.outputs), node, node.domain, integer=_on_codes(node))
            for node in scope.model.nodes
            if node.inputs and node.outputs and len(node.inputs) > (node.op_type in BOTH)
        ]
        self.results = {value.name for value in scope.model.outputs}
        self.static = all(static_shape(value.shape) is not None for value in scope.model.fed.values())
        self._same: dict[str, str] = {}
        self._codes: dict[str, str] = {}
        self._known: set[str] = set()
        self.link()
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self.fused: dict[str, str] = {}
        self.makes_unsigned = preparation.makes_unsigned
        preparation.apply(self)

    def link(self) -> None:
        """Rebuild the maps from tensors to their makers and readers."""
        self.maker = {name: op for op in self.ops for name in op.outputs if name}
        self.readers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in (*op.inputs, *(op.node.captured if op.node is not None else ())):
                if name:
                    self.readers.setdefault(name, []).append(op)

    def read(self, name: str) -> Sequence[Op]:
        """The readers of a tensor, one entry for each input that reads it."""
        return self.readers.get(name, ())

    def only_reader(self, name: str, operators: Collection[str]) -> Op | None:
        """The only reader of a tensor, if it is one of the operators and the tensor is no output of the graph."""
        readers = self.read(name)
        alone = len(readers) == 1 and name not in self.results and readers[0].op_type in operators
        return readers[0] if alone else None

    def requantized(self, name: str) -> Sequence[str]:
        """The tensors that QuantizeLinear and DequantizeLinear make of a tensor."""
        codes = [op.outputs[0] for op in self.read(name) if op.op_type == QUANTIZE]
        return [op.outputs[0] for code in codes for op in self.read(code) if op.op_type == DEQUANTIZE]

    def array(self, name: str) -> Array | None:
        """The value of a stored tensor that no caller can override; None for other tensors."""
        home = self.scope.home(name) if name else None
        return None if home is None or name in home.model.fed else self.scope.value(name)

    def type(self, name: str) -> str:
        """The element type by its ONNX name; "" if not known."""
        if name in self._codes:
            return self._codes[name]
        dtype = self.scope.dtype(self._same.get(name, name))
        return ONNX_NAMES.get(dtype, "") if dtype is not None else ""

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor; None if unknown."""
        return self.scope.shape(self._same.get(name, name))

    def constant(self, name: str) -> bool:
        """Is the tensor stored, or made only by quantizing, dequantizing or moving a stored one?"""
        while name not in self._same or name in self.maker:
            if self.array(name) is not None:
                return True
            op = self.maker.get(name)
            if op is None or op.op_type not in _STORES or not op.inputs:
                return False
            name = op.inputs[0]
        return False

    def folded(self, op: Op) -> bool:
        """Can the operator be computed before a run, because it reads stored tensors only?"""
        if op.op_type in ("Shape", "Size") and static_shape(self.shape(op.inputs[0])) is not None:
            self._known.update(op.outputs)
            return True
        names = [name for name in op.inputs if name]
        if not names or not all(name in self._known or self.constant(name) for name in names):
            return False
        self._known.update(op.outputs)
        return True

    def scalar(self, op: Op) -> bool:
        """Has a QuantizeLinear or DequantizeLinear one stored scale, and one stored zero point or none?"""
        values = [self.array(name) for name in op.inputs[1:] if name]
        return len(op.inputs) > 1 and all(value is not None and value.size == 1 for value in values)

    def quantize(self, name: str, like: Op, reader: Op | None = None) -> None:
        """Insert QuantizeLinear and DequantizeLinear with the parameters of `like` after a tensor. Readers that
        quantize the tensor read it before the pair. After a graph input, only `reader` reads the pair's result."""
        number = len(self._codes)
        before, codes = f"{name}\0before {number}", f"{name}\0codes {number}"
        maker = self.maker.get(name)
        self._same[before] = self._same[codes] = self._same.get(name, name)
        self._codes[codes] = self.type(like.inputs[0] if like.op_type == DEQUANTIZE else like.outputs[0])
        if maker is not None:
            maker.outputs[maker.outputs.index(name)] = before
            self.maker[before] = maker
            start, end = before, name
            moved = [op for op in self.read(name) if op.op_type == QUANTIZE]
        else:
            start, end = name, before
            moved = [op for op in self.read(name) if op is reader]
        for op in moved:
            self._reread(op, name, before)
        spread, more = like.op_type == DEQUANTIZE, like.inputs[1:]
        self._add(Op(QUANTIZE, [start, *more], [codes], domain=like.domain, spread=spread))
        self._add(Op(DEQUANTIZE, [codes, *more], [end], domain=like.domain))

    def reshape_around(self, op: Op) -> None:
        """Insert a Reshape before the first input of an operator, and one behind its result; `link` comes after."""
        read, made = op.inputs[0], op.outputs[0]
        op.inputs[0], op.outputs = f"{read}\0rows of {made}", [f"{made}\0rows"]
        self._same[op.inputs[0]], self._same[op.outputs[0]] = self._same.get(read, read), self._same.get(made, made)
        self.ops += [Op("Reshape", [read], [op.inputs[0]]), Op("Reshape", [op.outputs[0]], [made])]

    def _add(self, op: Op) -> None:
        """Add an operator at the end."""
        self.ops.append(op)
        self.maker[op.outputs[0]] = op
        for name in op.inputs:
            self.readers.setdefault(name, []).append(op)

    def _reread(self, op: Op, old: str, new: str) -> None:
        """Make a reader of the tensor `old` read `new`."""
        op.inputs[:] = [new if name == old else name for name in op.inputs]
        self.readers[old].remove(op)
        self.readers.setdefault(new, []).append(op)

    def without(self, op: Op) -> None:
        """Remove an operator: the readers of its output then read its first input."""
        made = op.outputs[0]
        for name in filter(None, op.inputs):
            self.readers[name].remove(op)
        for reader in list(self.read(made)):
            self._reread(reader, made, op.inputs[0])
        del self.maker[made]
        self.ops.remove(op)


@dataclass(frozen=True)
class Preparation:
    """How a target changes a graph first.

    optimizes: whether it removes Identity, Shape of shapes that are known before a run, and QuantizeLinear that repeat
        others.
    fuses: activations (Relu, Clip) that it computes together with the operator before them.
    redundant_clips: operators (Relu, Clip) that it removes before a QuantizeLinear of float32 that clips at least as
        much.
    moving_operators: operators that only move values. If only their input or only their result is quantized, it
        quantizes the other with the same parameters.
    joins_gemm: whether it turns MatMul and Add of a vector into Gemm, between two Reshape if the input is no matrix.
    makes_unsigned: whether it turns int8 tensors between QuantizeLinear and their only reader into uint8.
    """

    optimizes: bool = False
    fuses: Collection[str] = ()
    redundant_clips: Collection[str] = ()
    moving_operators: Collection[str] = ()
    joins_gemm: bool = False
    makes_unsigned: bool = False

    def apply(self, view: TargetView) -> None:
        """Change the view as the runtime changes the graph before it fuses."""
        if self.optimizes:
            self._optimize(view)
        for op in [op for op in view.ops if op.op_type in self.fuses]:
            _fuse(view, op)

    def _optimize(self, view: TargetView) -> None:
        """Change the view as the runtime changes the graph before it fuses."""
        for op in list(view.ops):
            if op.op_type == "Identity" and op.outputs[0] not in view.results:
                view.without(op)
            elif op.op_type == "Shape" and (view.static or _of_reshape(view, op)):
                view.ops.remove(op)
                view.readers[op.inputs[0]].remove(op)
        _merge_quantizers(view)
        if self.joins_gemm:
            _join_gemms(view)
        for op in [op for op in view.ops if op.op_type == QUANTIZE and view.scalar(op)]:
            self._backward(view, op)
        for op in [op for op in view.ops if op.op_type == DEQUANTIZE and view.scalar(op)]:
            self._forward(view, op, op.outputs[0])
        for op in [op for op in view.ops if op.op_type in self.redundant_clips]:
            if _clips_again(view, op):
                view.without(op)
        _merge_quantizers(view)

    def _moves(self, op: Op, name: str) -> bool:
        """Whether an operator only moves the elements of a tensor."""
        return op.op_type in self.moving_operators and op.inputs[:1] == [name]

    def _forward(self, view: TargetView, like: Op, name: str) -> None:
        """Repeat a quantization after the operators that move its tensor."""
        for op in [op for op in view.read(name) if self._moves(op, name)]:
            made = op.outputs[0]
            if (made in view.results or view.read(made)) and all(r.op_type != QUANTIZE for r in view.read(made)):
                view.quantize(made, like)
                self._forward(view, like, made)

    def _backward(self, view: TargetView, like: Op) -> None:
        """Repeat a quantization before the operators that move its tensor."""
        name = like.inputs[0]
        while len(view.read(name)) == 1 and name not in view.results:
            op = view.maker.get(name)
            if op is None or op.op_type not in self.moving_operators or view.constant(op.inputs[0]):
                return
            name = op.inputs[0]
            maker = view.maker.get(name)
            if maker is None:
                view.quantize(name, like, op)
                return
            if maker.op_type == DEQUANTIZE or len(view.read(name)) != 1 or name in view.results:
                return
            view.quantize(name, like)
            name = maker.outputs[0]


def _fuse(view: TargetView, op: Op) -> None:
    """Join an activation with the operator before it, if only the activation reads that operator's result, and only a
    QuantizeLinear the activation's."""
    name, readers = op.inputs[0], view.read(op.outputs[0])
    maker = view.maker.get(name)
    if maker is None or maker.op_type == DEQUANTIZE or len(view.read(name)) != 1 or name in view.results:
        return
    if len(readers) == 1 and readers[0].op_type == QUANTIZE:
        view.fused[name] = op.outputs[0]


def _of_reshape(view: TargetView, op: Op) -> bool:
    """Does a Reshape read the tensor too? It can then take the sizes from that tensor itself."""
    return any(reader.op_type == "Reshape" and reader.inputs[0] == op.inputs[0] for reader in view.read(op.inputs[0]))


def _merge_quantizers(view: TargetView) -> None:
    """Replace QuantizeLinear nodes that quantize a tensor with the same parameters by the first one."""
    first: dict[tuple[object, ...], Op] = {}
    for op in [op for op in view.ops if op.op_type == QUANTIZE]:
        attributes = op.node.attributes.items() if op.node is not None else ()
        kept = first.setdefault((*op.inputs, str(sorted(attributes))), op)
        if kept is not op and view.results.isdisjoint(op.outputs):
            for reader in view.read(op.outputs[0]):
                reader.inputs[:] = [kept.outputs[0] if name == op.outputs[0] else name for name in reader.inputs]
            view.ops.remove(op)
    view.link()


def _join_gemms(view: TargetView) -> None:
    """Turn MatMul and Add into Gemm, and add a Reshape before and behind it if the first input is no matrix."""
    for op in [op for op in view.ops if op.op_type == "MatMul"]:
        add = view.only_reader(op.outputs[0], ("Add",))
        bias = next((name for name in add.inputs if name != op.outputs[0]), "") if add is not None else ""
        if add is None or add not in view.ops or not _is_gemm(*(view.shape(name) for name in (*op.inputs, bias))):
            continue
        op.op_type, op.outputs = "Gemm", add.outputs
        op.inputs.append(bias)
        view.ops.remove(add)
        if len(view.shape(op.inputs[0]) or ()) != 2:
            view.reshape_around(op)
    view.link()


def _is_gemm(x: Shape | None, w: Shape | None, bias: Shape | None) -> bool:
    """Do the shapes of a product's operands, and of what is added to it, fit a Gemm?"""
    if x is None or w is None or bias is None or len(w) != 2:
        return False
    if len(x) != 2:
        return bias == w[1:] and static_shape(x) is not None and static_shape(w) is not None
    return bias in (w[1:], (1, *w[1:]), (*x[:1], 1), (*x[:1], *w[1:]))


def _clips_again(view: TargetView, op: Op) -> bool:
    """Is the operator's only reader a QuantizeLinear of float32 that clips to the operator's limits or closer?"""
    readers = view.read(op.outputs[0])
    if (
        len(readers) != 1
        or readers[0].op_type != QUANTIZE
        or op.outputs[0] in view.results
        or not view.scalar(readers[0])
        or view.type(readers[0].inputs[0]) != "float"
    ):
        return False
    bounds = code_bounds(view, readers[0])
    if bounds is None:
        return False
    zero, low, high = bounds
    if op.op_type == "Relu":
        return zero == low
    scale = view.array(readers[0].inputs[1])
    clip = _clip_limits(view, op)
    if scale is None or clip is None or not scale.item() > 0:
        return False
    ends = [np.rint(np.float64(end) / scale.item()) + zero for end in clip]
    return bool(ends[0] <= low and ends[1] >= high)


def code_bounds(view: TargetView, op: Op) -> tuple[int, int, int] | None:
    """The zero point of a QuantizeLinear, and its smallest and largest code; None if they are not known."""
    if view.type(op.outputs[0]) not in ("int8", "uint8", "int16", "uint16"):
        return None
    info = np.iinfo(view.type(op.outputs[0]))
    zero = view.array(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else np.zeros(1, np.int64)
    return None if zero is None else (int(zero.item()), int(info.min), int(info.max))


def _clip_limits(view: TargetView, op: Op) -> tuple[float, float] | None:
    """The limits of a Clip; None if they are not constant."""
    node = op.node
    least, most = -float("inf"), float("inf")
    if node is None:
        return None
    found: list[Any] = [node.attributes.get("min", least), node.attributes.get("max", most)]
    for index, name in enumerate(op.inputs[1:3]):
        if name:
            value = view.array(name)
            if value is None or value.size != 1:
                return None
            found[index] = float(value.item())
    return float(found[0]), float(found[1])
