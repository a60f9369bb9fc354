"""Finds chains: tensors that depend, element by element, only on one 8-bit tensor and on constants."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ir.schema import OWN
from qrun.ir.types import DTYPES
from qrun.ops import OpDef, find
from qrun.passes._draft import Draft, Refused
from qrun.passes._sides import EIGHT, dtype_of

_LONGEST = 64
"""Nodes after which a table ends as soon as possible; it must end after four times as many."""
_ROWS = 1 << 16
"""The most rows of one table."""
_OBVIOUS = ""
"""The reason that is not reported: the node does not work on one 8-bit tensor."""


@frozen
class ElementwiseChain:
    """A tensor that depends only on the values of `root`, through `nodes`.

    along: if it also depends on the index along one axis: this axis and its length; else None.
    """

    root: str
    dtype: np.dtype
    nodes: frozenset[int] = frozenset()
    along: tuple[int, int] | None = None


def chains(draft: Draft) -> dict[str, ElementwiseChain]:
    """The chain of each tensor that has one, by name. Notes in the draft why other elementwise nodes have none."""
    follower = _Follower(draft)
    for node in draft.model.nodes:
        definition = _elementwise(node)
        if definition is not None:
            follower.follow(node, definition)
    return follower.chains


class _Follower:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.chains: dict[str, ElementwiseChain] = {}

    def follow(self, node: Node, definition: OpDef) -> None:
        """Note the node's result as a function of an 8-bit tensor, if it is one."""
        data = [index for index, name in enumerate(node.inputs) if name and self.draft.constant_value(name) is None]
        if not data:
            return
        starts = (self._join_inputs, self._fresh)
        for start in starts:
            try:
                chain = start(node, definition, data)
                along = self._along(node, definition, data, chain)
            except Refused as reason:
                if str(reason):
                    self.draft.refused.setdefault(node.index, str(reason))
            else:
                self.draft.refused.pop(node.index, None)
                self.chains[output(node)] = ElementwiseChain(chain.root, chain.dtype, chain.nodes | {node.index}, along)
                return

    def _join_inputs(self, node: Node, definition: OpDef, data: Sequence[int]) -> ElementwiseChain:
        """One chain of all inputs that are not constant, to their common root. Raises Refused if there is none."""
        places = {node.inputs[p]: p for p in reversed(data)}
        found = [self.chains.get(name) or self._fresh(node, definition, [p]) for name, p in places.items()]
        first, nodes = found[0], frozenset[int]().union(*(chain.nodes for chain in found))
        if any(chain.root != first.root for chain in found):
            raise Refused(_OBVIOUS)
        if len(nodes) >= _LONGEST:
            with suppress(Refused):
                return self._fresh(node, definition, data)
        if len(nodes) >= 4 * _LONGEST:
            raise Refused(f"it follows {len(nodes)} elementwise nodes")
        along = None
        for chain in found:
            along = _same_axis(along, chain.along)
        return ElementwiseChain(first.root, first.dtype, nodes, along)

    def _fresh(self, node: Node, definition: OpDef, data: Sequence[int]) -> ElementwiseChain:
        """A chain from the node's only input that is not constant, an 8-bit tensor. Raises Refused otherwise."""
        if len({node.inputs[p] for p in data}) > 1:
            raise Refused(_OBVIOUS)
        name, what = node.inputs[data[0]], definition.param(data[0])
        dtype = dtype_of(self.draft, name, self._zero_point(node, definition, what))
        if is_table(node):
            dtype = DTYPES.get(_int(node, "input_dtype", 0), dtype)
        if dtype is None or dtype not in EIGHT:
            raise Refused(_OBVIOUS)
        return ElementwiseChain(name, dtype)

    def _zero_point(self, node: Node, definition: OpDef, what: str) -> Array | None:
        """The zero point of input x or output y; None if it has none or is not constant."""
        for param, name in zip(definition.inputs, node.inputs, strict=False):
            if name and param.name == f"{what}_zero_point":
                return self.draft.value(name)
        return None

    def _along(
        self, node: Node, definition: OpDef, data: Sequence[int], chain: ElementwiseChain
    ) -> tuple[int, int] | None:
        """The axis along which the node's constants vary, if any, combined with the axis of the chain."""
        along = chain.along
        if definition.form != "broadcast" and list(data) != [0]:
            raise Refused(_OBVIOUS)
        for index in sorted({*range(len(node.inputs))}.difference(data)):
            name = node.inputs[index]
            if not name:
                continue
            constant = self.draft.constant_value(name)
            assert constant is not None
            if definition.form == "broadcast":
                along = _same_axis(along, self._broadcast_axis(constant, chain.root))
            elif constant.size != 1 and not (is_table(node) and constant.ndim == 1):
                along = _same_axis(along, self._parameter_axis(node, constant, chain.root))
        return along

    def _parameter_axis(self, node: Node, constant: Array, root: str) -> tuple[int, int]:
        """The axis along which a node's scales lie, and their number. Raises Refused."""
        rank = 1 + is_table(node)
        axis = _int(node, "axis", 1)
        shape = self.draft.shapes.get(root)
        if constant.ndim != rank or constant.shape[0] > _ROWS or (axis < 0 and shape is None):
            raise Refused("its parameters are neither one number nor one per place along an axis")
        return (axis % len(shape) if axis < 0 and shape else axis), constant.shape[0]

    def _broadcast_axis(self, constant: Array, root: str) -> tuple[int, int] | None:
        """The axis along which a constant varies, and its size; None for one number. Raises Refused."""
        shape = self.draft.shapes.get(root)
        if not constant.ndim:
            return None
        if shape is None or constant.ndim > len(shape):
            raise Refused("its constants may have more axes than it" if shape else "its rank is not known")
        axes = [axis for axis, n in enumerate(constant.shape, len(shape) - constant.ndim) if n != 1]
        if len(axes) > 1 or constant.size > _ROWS:
            raise Refused("its constants vary along more than one axis")
        if axes and shape[axes[0]] != constant.size:
            raise Refused(f"axis {axes[0]} is not known to have {constant.size} elements")
        return (axes[0], constant.size) if axes else None


def _same_axis(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    """The axis of two constants, or of the one that has any. Raises Refused if they differ."""
    if a is not None and b is not None and a != b:
        raise Refused("its constants vary along more than one axis")
    return a or b


def _elementwise(node: Node) -> OpDef | None:
    """The declaration of a node with one result that depends on its inputs element by element; else None."""
    definition = find(node.domain, node.op_type, node.version)
    known = definition is not None and definition.form in ("pointwise", "broadcast")
    if definition is None or not (known or is_table(node) or node.op_type == "Identity"):
        return None
    special = node.attributes.get("training_mode") or node.attributes.get("block_size")
    return None if special or not output(node) else definition


def output(node: Node) -> str:
    """The name of the node's only output, or "" if it has more or none."""
    named = [name for name in node.outputs if name]
    return named[0] if len(named) == 1 else ""


def is_table(node: Node) -> bool:
    """Whether the node is a table made by a pass."""
    return node.domain == OWN


def _int(node: Node, name: str, default: int) -> int:
    """An integer attribute."""
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default
