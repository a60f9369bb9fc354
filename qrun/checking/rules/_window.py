"""The geometry of convolution and pool nodes: window attributes, and the shapes of x and w."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import mistyped_inputs
from qrun.checking.rules._scope import Scope, Shape, ints, nodes, number
from qrun.declare.frozen import frozen
from qrun.ir import Model, Node
from qrun.ir.schema import MS
from qrun.ops import op_names

CONVS: dict[tuple[str, str], tuple[int, int]] = {
    ("", "Conv"): (0, 1),
    ("", "ConvInteger"): (0, 1),
    ("", "ConvTranspose"): (0, 1),
    ("", "QLinearConv"): (0, 3),
    (MS, "QLinearConv"): (0, 3),
}
"""Convolutions, with the input places of x and w."""
POOLS = (("", "MaxPool"), ("", "AveragePool"), ("", "LpPool"), (MS, "QLinearAveragePool"), (MS, "NhwcMaxPool"))
_KEEPING = (
    "QuantizeLinear",
    "DequantizeLinear",
    "Relu",
    "Clip",
    "Identity",
    "LeakyRelu",
    "Sigmoid",
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "BatchNormalization",
)
"""Operators whose output has the channels of their first input, as pools do."""
_HOPS = 8
OPERATORS, CONV_NAMES = op_names((*CONVS, *POOLS)), op_names(CONVS)


@frozen
class Windowed:
    """A node with a window. x, w: names of its inputs, w empty for a pool; x_shape, w_shape: None if not known."""

    scope: Scope
    node: Node
    x: str
    w: str
    x_shape: Shape | None
    w_shape: Shape | None

    @property
    def transposed(self) -> bool:
        return self.node.op_type == "ConvTranspose"

    @property
    def w_place(self) -> int:
        return CONVS[self.node.domain, self.node.op_type][1] if self.w else 0

    @property
    def channels_last(self) -> bool:
        return self.node.op_type == "NhwcMaxPool" or number(self.node, "channels_last") != 0

    @property
    def channels(self) -> int | str | None:
        if self.x_shape is None:
            return None if self.channels_last else channels_from_producer(self.scope, self.x)
        if len(self.x_shape) < 3:
            return None
        return self.x_shape[-1 if self.channels_last else 1]

    @property
    def size(self) -> Shape | None:
        """The spatial sizes of x."""
        if self.x_shape is None or len(self.x_shape) < 3:
            return None
        return self.x_shape[1:-1] if self.channels_last else self.x_shape[2:]

    @property
    def kernel(self) -> Shape | None:
        """The kernel's sizes from w, else from kernel_shape; None if neither is known."""
        if self.w_shape is not None and len(self.w_shape) >= 3:
            return self.w_shape[2:]
        return ints(self.node, "kernel_shape") or None

    @property
    def rank(self) -> int | None:
        """The number of spatial axes; None if it is unknown or x and w disagree."""
        given = (self.size, self.kernel) if self.w or self.size is None else (self.size,)
        found = {len(s) for s in given if s is not None}
        return found.pop() if len(found) == 1 else None


def windows(model: Model) -> Iterator[Windowed]:
    """Yield every convolution and pool of the model and its subgraphs."""
    for scope, node in nodes(model, (*CONVS, *POOLS)):
        key = node.domain, node.op_type
        if key in CONVS and max(CONVS[key]) < len(node.inputs):
            (x, x_shape), (w, w_shape) = (_input(scope, node, place) for place in CONVS[key])
            yield Windowed(scope, node, x, w, x_shape, w_shape)
        elif key in POOLS and node.inputs:
            x, x_shape = _input(scope, node, 0)
            yield Windowed(scope, node, x, "", x_shape, None)


def _input(scope: Scope, node: Node, place: int) -> tuple[str, Shape | None]:
    """An input's name and shape; no shape if its type is wrong, because the shape then means nothing."""
    name = node.inputs[place]
    return name, None if place in mistyped_inputs(scope, node) else scope.shape(name)


def channels_from_producer(scope: Scope, name: str) -> int | None:
    """The number of channels of a tensor without a stated shape, from the convolution that it comes from; or None."""
    for _ in range(_HOPS):
        made = scope.producer(name)
        if made is None:
            return None
        node, scope = made
        key = node.domain, node.op_type
        if key in CONVS and node.op_type != "ConvTranspose" and not number(node, "channels_last"):
            places = CONVS[key]
            w = scope.shape(node.inputs[places[1]]) if places[1] < len(node.inputs) else None
            return w[0] if w is not None and len(w) > 2 and isinstance(w[0], int) else None
        keeps = key in POOLS or node.op_type in _KEEPING
        if not keeps or not node.inputs or number(node, "channels_last") or node.op_type == "NhwcMaxPool":
            return None
        name = node.inputs[0]
    return None


def auto_pad(node: Node) -> str:
    value = node.attributes.get("auto_pad", "NOTSET")
    return value if isinstance(value, str) else "NOTSET"


def bad_values(node: Node, name: str, count: int | None, least: int) -> bool:
    """Has a list attribute, if it is given, another length than `count`, or a value below `least`?"""
    values = ints(node, name)
    return bool(values) and (any(v < least for v in values) or count not in (None, len(values)))
