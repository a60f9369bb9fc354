"""Elementwise nodes between two 8-bit tensors become one table.

From an 8-bit tensor x, follow the nodes whose results depend, element by element, on x alone and on constants:
operators of form `pointwise` or `broadcast`, whether their results are integers or float. Where such a node makes an
8-bit tensor again, all of them together are a function of 256 codes, or of 256 codes for each place along one axis where
a constant has one value per channel. The reference kernels compute it for all codes, in the session's arithmetic, and a
Table node of qrun's own domain looks the results up: they are those of the literal graph, bit for bit, by construction.

A table that changes nothing, such as DequantizeLinear and QuantizeLinear with equal parameters make, disappears; a
single node stays what it is unless it has a constant per channel. A table of a table is one table.

Not followed: constants that vary along two axes; for operators that broadcast, constants along an axis that is not known
to have that length (they might repeat x), or where the rank of x is not known; blocked quantization; training; nodes
that have something to report for some code, such as NaN or an odd scale. A table reports no saturation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare import Later
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ir.schema import OWN
from qrun.ir.types import DTYPES, NUMBERS
from qrun.ops import Arith, OpDef, find
from qrun.passes._draft import Draft, Refused, Rewritten, unchanged
from qrun.passes._sides import EIGHT, dtype_of, is_dequantize

if TYPE_CHECKING:
    from qrun.passes import _evaluate
else:
    _evaluate = Later("qrun.passes._evaluate")

_LONGEST = 64
"""Nodes after which a table ends as soon as it may; it must end after four times as many."""
_ROWS = 1 << 16
"""Rows that one table may have."""
_MEMORY = 64 << 20
_OBVIOUS = ""
"""The reason that is not told: the node does not work on one 8-bit tensor."""
_CODES = np.arange(256, dtype=np.uint8)


@frozen
class _Chain:
    """A tensor that depends on the codes of `root` alone, through `nodes`.

    along: the axis along which it also depends on the place, and the length of that axis; None if it does not.
    """

    root: str
    dtype: np.dtype
    nodes: frozenset[int] = frozenset()
    along: tuple[int, int] | None = None


def tabulate(model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
    """The model with tables for its elementwise functions of 8-bit tensors."""
    types = {v.dtype for v in model.types.values()} | {array.dtype for array in model.constants.values()}
    if types.isdisjoint(EIGHT):
        return unchanged(model)
    return _Tables(Draft(model, keep, arith)).run()


class _Tables:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.chains: dict[str, _Chain] = {}

    def run(self) -> Rewritten:
        nodes = self.draft.model.nodes
        for node in nodes:
            definition = _elementwise(node)
            if definition is not None:
                self._follow(node, definition)
        needed = set(self.draft.preserved)
        for node in reversed(nodes):
            name = _output(node)
            chain = self.chains.get(name)
            read = chain is None or name in needed or not self.draft.consumers(name)
            if chain is not None and read and self._replace(node, chain):
                needed.add(chain.root)
            elif read:
                needed.update(node.inputs)
        return self.draft.finish()

    def _follow(self, node: Node, definition: OpDef) -> None:
        """Note the node's result as a function of an 8-bit tensor, if it is one."""
        data = [place for place, name in enumerate(node.inputs) if name and self.draft.computed(name) is None]
        if not data:
            return
        starts = (self._joined, self._fresh)
        for start in starts:
            try:
                chain = start(node, definition, data)
                along = self._along(node, definition, data, chain)
            except Refused as reason:
                if str(reason):
                    self.draft.refused.setdefault(node.index, str(reason))
            else:
                self.draft.refused.pop(node.index, None)
                self.chains[_output(node)] = _Chain(chain.root, chain.dtype, chain.nodes | {node.index}, along)
                return

    def _joined(self, node: Node, definition: OpDef, data: Sequence[int]) -> _Chain:
        """What the inputs that are not constant depend on, as far back as possible."""
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
        return _Chain(first.root, first.dtype, nodes, along)

    def _fresh(self, node: Node, definition: OpDef, data: Sequence[int]) -> _Chain:
        """The input itself, if it is one tensor of 8 bits."""
        if len({node.inputs[p] for p in data}) > 1:
            raise Refused(_OBVIOUS)
        name, what = node.inputs[data[0]], definition.param(data[0])
        dtype = dtype_of(self.draft, name, self._zero_point(node, definition, what))
        if _is_table(node):
            dtype = DTYPES.get(_int(node, "input_dtype", 0), dtype)
        if dtype is None or dtype not in EIGHT:
            raise Refused(_OBVIOUS)
        return _Chain(name, dtype)

    def _zero_point(self, node: Node, definition: OpDef, what: str) -> Array | None:
        for param, name in zip(definition.inputs, node.inputs, strict=False):
            if name and param.name == f"{what}_zero_point":
                return self.draft.value(name)
        return None

    def _along(self, node: Node, definition: OpDef, data: Sequence[int], chain: _Chain) -> tuple[int, int] | None:
        """The axis along which the node's constants vary, if any, joined with that of the chain."""
        along = chain.along
        if definition.form != "broadcast" and list(data) != [0]:
            raise Refused(_OBVIOUS)
        for place in sorted({*range(len(node.inputs))}.difference(data)):
            name = node.inputs[place]
            if not name:
                continue
            constant = self.draft.computed(name)
            assert constant is not None
            if definition.form == "broadcast":
                along = _same_axis(along, self._broadcast_axis(constant, chain.root))
            elif constant.size != 1 and not (_is_table(node) and constant.ndim == 1):
                along = _same_axis(along, self._parameter_axis(node, constant, chain.root))
        return along

    def _parameter_axis(self, node: Node, constant: Array, root: str) -> tuple[int, int]:
        rank = 1 + _is_table(node)
        axis = _int(node, "axis", 1)
        shape = self.draft.shapes.get(root)
        if constant.ndim != rank or constant.shape[0] > _ROWS or (axis < 0 and shape is None):
            raise Refused("its parameters are neither one number nor one per place along an axis")
        return (axis % len(shape) if axis < 0 and shape else axis), constant.shape[0]

    def _broadcast_axis(self, constant: Array, root: str) -> tuple[int, int] | None:
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

    def _replace(self, node: Node, chain: _Chain) -> bool:
        """Whether a table, or nothing at all, now does what the chain's nodes do."""
        single = len(chain.nodes) < 2 and (chain.along is None or _is_table(node))
        if single or is_dequantize(node):
            return False
        table = self._table(_output(node), chain)
        if table is None:
            return False
        name, draft = _output(node), self.draft
        if table.dtype == chain.dtype and bool(np.all(table.view(np.uint8) == _CODES)):
            draft.alias(name, chain.root, node.index)
            return True
        attributes = {"input_dtype": NUMBERS[chain.dtype]} | (
            {"axis": chain.along[0]} if chain.along and table.ndim == 2 else {}
        )
        inputs = (chain.root, draft.constant(table, f"{name}_table"))
        draft.put(node.index, (Node(node.index, node.label, OWN, "Table", 1, inputs, (name,), attributes), chain.nodes))
        draft.state(name, table.dtype, chain.root)
        return True

    def _table(self, name: str, chain: _Chain) -> Array | None:
        """The chain's result for all codes: 8-bit, [256] or [C,256], or None if it is none."""
        axis, _ = chain.along or (None, 1)
        shape = self.draft.shapes.get(chain.root)
        rank = max(2, len(shape) if shape is not None else 0 if axis is None else axis + 2)
        places = [place for place in range(rank) if place != axis]
        if axis is not None and (axis >= rank or (shape is not None and len(shape) < 2)):
            return None
        last = 1 if axis is None else places[-1]
        made = [self._run(name, chain, rank, place) for place in (places if self.draft.arith == "ort" else [last])]
        first = made[0]
        if first is None or any(other is None or not np.array_equal(first, other) for other in made):
            return None
        return first[0] if len(first) and bool(np.all(first == first[:1])) else first

    def _run(self, name: str, chain: _Chain, rank: int, place: int) -> Array | None:
        """The result [C,256] of a tensor of this rank whose codes lie along axis `place`."""
        axis, rows = chain.along or (None, 1)
        shape = [256 if i == place else rows if i == axis else 1 for i in range(rank)]
        codes = _CODES.reshape([256 if i == place else 1 for i in range(rank)])
        values = {chain.root: np.array(np.broadcast_to(codes, shape)).view(chain.dtype)}
        for index in sorted(chain.nodes):
            node = self.draft.model.nodes[index]
            args = [values.get(i, self.draft.computed(i)) if i else None for i in node.inputs]
            made = _evaluate.evaluate(node, args, self.draft.arith, _MEMORY, saturating=True)
            if made is None:
                return None
            values[_output(node)] = made[node.outputs.index(_output(node))]
        y = values[name]
        if y.dtype not in EIGHT or list(y.shape) != shape:
            return None
        return np.ascontiguousarray(np.moveaxis(y, place, -1)).reshape(rows, 256)


def _same_axis(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    if a is not None and b is not None and a != b:
        raise Refused("its constants vary along more than one axis")
    return a or b


def _elementwise(node: Node) -> OpDef | None:
    """The declaration of a node whose one result depends on its inputs element by element."""
    definition = find(node.domain, node.op_type, node.version)
    known = definition is not None and definition.form in ("pointwise", "broadcast")
    if definition is None or not (known or _is_table(node) or node.op_type == "Identity"):
        return None
    special = node.attributes.get("training_mode") or node.attributes.get("block_size")
    return None if special or not _output(node) else definition


def _output(node: Node) -> str:
    """The name of the node's one output, or "" if it has more or fewer."""
    named = [name for name in node.outputs if name]
    return named[0] if len(named) == 1 else ""


def _is_table(node: Node) -> bool:
    return node.domain == OWN


def _int(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default
