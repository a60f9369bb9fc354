"""Replaces elementwise nodes between two 8-bit tensors by one table.

Starting at an 8-bit tensor x, the pass follows the nodes whose results depend, element by element, only on x and on
constants: operators of form `pointwise` or `broadcast`, whether their results are integers or float. Where such a node
makes an 8-bit tensor again, all of them together are a function of 256 codes, or of 256 codes for each place along one
axis where a constant has one value per channel. The reference kernels compute it for all codes, in the session's
arithmetic, and a Table node of qrun's own domain looks the results up: they equal those of the literal graph, bit for
bit, by construction.

A table that changes nothing, such as DequantizeLinear and QuantizeLinear with equal parameters make, disappears; a
single node stays as it is unless it has a constant per channel. A table of a table becomes one table.

Not followed: constants that vary along two axes; for operators that broadcast, constants along an axis that is not
known to have that length (they might repeat x), or if the rank of x is not known; blocked quantization; training; nodes
that have something to report for some code, such as NaN or an odd scale. A table reports no saturation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare import Later
from qrun.declare.memo import Memo
from qrun.declare.stored import parts
from qrun.ir import Array, Model, Node
from qrun.ir.model import once_per_model
from qrun.ir.schema import OWN
from qrun.ir.types import NUMBERS
from qrun.ops import Arith
from qrun.passes._chains import ElementwiseChain, chains, is_table, output
from qrun.passes._draft import Draft, Rewritten, unchanged_model
from qrun.passes._sides import EIGHT, is_dequantize

if TYPE_CHECKING:
    from qrun.passes import _evaluate
else:
    _evaluate = Later("qrun.passes._evaluate")

_MEMORY = 64 << 20
_CODES = np.arange(256, dtype=np.uint8)


def tabulate(model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
    """The model with tables for its elementwise functions of 8-bit tensors."""
    return _Tables(Draft(model, keep, arith)).run() if _has_codes(model) else unchanged_model(model)


def makes_a_table(model: Model, arith: Arith) -> bool:
    """Whether `tabulate` makes a table from any node where only the graph's outputs are kept."""
    return _has_codes(model) and _Tables(Draft(model, (), arith)).any()


def _has_codes(model: Model) -> bool:
    """Whether the model has 8-bit tensors."""
    types = {v.dtype for v in model.types.values()} | {part.dtype for part in parts(model.constants).values()}
    return not types.isdisjoint(EIGHT)


@once_per_model
def _memo(model: Model) -> Memo:
    """The cache of a model's chains, by arithmetic: `makes_a_table` and then `tabulate` need them."""
    return Memo()


class _Tables:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.chains, refused = _memo(draft.model).once(draft.arith, lambda: (chains(draft), {**draft.refused}))
        draft.refused.update(refused)
        self.made = 0

    def run(self) -> Rewritten:
        """Replace all chains by tables and return the rewritten model."""
        for _ in self._visit():
            pass
        return self.draft.finish()

    def any(self) -> bool:
        """Whether there is a chain to replace."""
        return any(self.made for _ in self._visit())

    def _visit(self) -> Iterator[Node]:
        """Yield each node, the last first, after a table has taken its place or it has been left as it is."""
        needed = set(self.draft.preserved)
        for node in reversed(self.draft.model.nodes):
            name = output(node)
            chain = self.chains.get(name)
            read = chain is None or name in needed or not self.draft.consumers(name)
            if chain is not None and read and self._replace(node, chain):
                needed.add(chain.root)
            elif read:
                needed.update(node.inputs)
            yield node

    def _replace(self, node: Node, chain: ElementwiseChain) -> bool:
        """Replace the chain's nodes by a table, or by nothing at all; returns whether it did."""
        single = len(chain.nodes) < 2 and (chain.along is None or is_table(node))
        if single or is_dequantize(node):
            return False
        table = self._table(output(node), chain)
        if table is None:
            return False
        name, draft = output(node), self.draft
        if table.dtype == chain.dtype and bool(np.all(table.view(np.uint8) == _CODES)):
            draft.alias(name, chain.root, node.index)
            return True
        attributes = {"input_dtype": NUMBERS[chain.dtype]} | (
            {"axis": chain.along[0]} if chain.along and table.ndim == 2 else {}
        )
        inputs = (chain.root, draft.constant(table, f"{name}_table"))
        draft.put(node.index, (Node(node.index, node.label, OWN, "Table", 1, inputs, (name,), attributes), chain.nodes))
        draft.state(name, table.dtype, chain.root)
        self.made += 1
        return True

    def _table(self, name: str, chain: ElementwiseChain) -> Array | None:
        """The chain's result for all codes: 8-bit, [256] or [C,256]; None if there is none."""
        axis, _ = chain.along or (None, 1)
        shape = self.draft.shapes.get(chain.root)
        rank = max(2, len(shape) if shape is not None else 0 if axis is None else axis + 2)
        places = [dim for dim in range(rank) if dim != axis]
        if axis is not None and (axis >= rank or (shape is not None and len(shape) < 2)):
            return None
        last = 1 if axis is None else places[-1]
        made = [self._run(name, chain, rank, dim) for dim in (places if self.draft.arith == "ort" else [last])]
        first = made[0]
        if first is None or any(other is None or not np.array_equal(first, other) for other in made):
            return None
        return first[0] if len(first) and bool(np.all(first == first[:1])) else first

    def _run(self, name: str, chain: ElementwiseChain, rank: int, dim: int) -> Array | None:
        """The result [C,256] for a tensor of this rank whose codes lie along axis `dim`."""
        axis, rows = chain.along or (None, 1)
        shape = [256 if i == dim else rows if i == axis else 1 for i in range(rank)]
        codes = _CODES.reshape([256 if i == dim else 1 for i in range(rank)])
        values = {chain.root: np.array(np.broadcast_to(codes, shape)).view(chain.dtype)}
        for index in sorted(chain.nodes):
            node = self.draft.model.nodes[index]
            args = [values.get(i, self.draft.constant_value(i)) if i else None for i in node.inputs]
            made = _evaluate.evaluate(node, args, self.draft.arith, _MEMORY, saturating=True)
            if made is None:
                return None
            values[output(node)] = made[node.outputs.index(output(node))]
        y = values[name]
        if y.dtype not in EIGHT or list(y.shape) != shape:
            return None
        return np.ascontiguousarray(np.moveaxis(y, dim, -1)).reshape(rows, 256)
