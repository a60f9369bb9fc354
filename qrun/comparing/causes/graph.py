"""A cause in a graph of several nodes, of which the other side shows only the last result: deviations that all nodes of
a kind share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from qrun.arithmetics.primitives import ROUND
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, compute_node
from qrun.comparing.causes._steps import ROUNDINGS, snap
from qrun.comparing.differences import same
from qrun.comparing.sides import Unit
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ops._quantize import is_integer

_SPEC = "ONNX operators, QuantizeLinear and DequantizeLinear: each node is defined by itself"
_MOST = 3
"""The most deviations at once."""
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Max", "Min")
_Compute = Callable[[Node, Suspect], Array | None]


@frozen
class Deviation:
    """What a runtime does in all nodes of a kind.

    text:    what deviates, "" for the graph as the specification reads it. count: the number of deviations.
    compute: returns the node's output from the suspect that this node is; None if the node is not of the kind.
    """

    text: str
    count: int
    compute: _Compute


_NONE = Deviation("", 0, lambda node, s: None)


@cause("several-nodes", rank=62, source=_SPEC)
def several_nodes(s: Suspect) -> Iterator[Hypothesis]:
    """The nodes of a graph deviate in the same way, each where it can, or a node before the last one deviates: how the
    codes are rounded, the scale of a bias, or which operator is computed. The text names each deviation. qrun looks for
    the fewest that reproduce every element.

    To confirm: Recompute the graph from its inputs with the named deviations: every code matches the runtime's.

    To do: Make the tensors in between outputs of the model and compare again. The first one that differs shows the
    node. Report the bug to the runtime's maintainers.
    """
    if s.alone or s.theirs is None or (s.theirs.shape, s.theirs.dtype) != (s.mine.shape, s.mine.dtype):
        return
    s, nodes = replace(s, values={**s.model.constants, **s.values}), s.unit.group
    tried = sorted(product(_roundings(nodes), *_readings(s, nodes)), key=_count)
    found = 0
    for chosen in tried:
        if _count(chosen) > (found or _MOST):
            return
        made = _run(s, nodes, chosen) if _count(chosen) else None
        if made is not None and not same(made, s.mine):
            found = _count(chosen) if s.is_explained_by(made) else found
            yield Hypothesis(made, " and ".join(each.text for each in chosen if each.text), implies=("several-steps",))


def _count(chosen: Sequence[Deviation]) -> int:
    """The number of deviations."""
    return sum(each.count for each in chosen)


def _run(s: Suspect, nodes: Sequence[Node], chosen: Sequence[Deviation]) -> Array | None:
    """The tensor as the graph gives it with these deviations; None if a node cannot be computed."""
    values = dict(s.values)
    for node in nodes:
        here = Suspect(s.model, Unit(node, (node,)), node.outputs[0], values, s.mine, None)
        other = next((array for each in chosen if (array := each.compute(node, here)) is not None), None)
        made = (other,) if other is not None else compute_node(node, here.args)
        if made is None:
            return None
        values.update(zip(node.outputs, made, strict=False))
    return values.get(s.tensor)


def _roundings(nodes: Sequence[Node]) -> Iterator[Deviation]:
    """Yield how all nodes that quantize may round."""
    every = "every QuantizeLinear" if sum(n.op_type == "QuantizeLinear" for n in nodes) > 1 else "QuantizeLinear"
    for before in (False, True):
        for name, text in ROUNDINGS.items():
            told = ["adds the zero point before rounding"] * before + [text] * bool(text)
            if told:
                yield Deviation(f"{' and '.join(told)} in {every}", len(told), _rounding(name, before))
    yield _NONE


def _rounding(name: str, before: bool) -> _Compute:
    """The codes of a QuantizeLinear that rounds in another way. before: is the zero point added before?"""

    def compute(node: Node, s: Suspect) -> Array | None:
        made = compute_node(node, s.args) if node.op_type == "QuantizeLinear" else None
        if made is None or not is_integer(made[0].dtype):
            return None
        here = replace(s, mine=made[0])
        if here.exact is None:
            return None
        zero = here.zero if before else np.zeros(())
        whole = ROUND[name][0](snap(here.exact - here.zero + zero))
        return here.to_codes(whole, here.zero - zero)

    return compute


def _readings(s: Suspect, nodes: Sequence[Node]) -> Iterator[Sequence[Deviation]]:
    """Yield, for each kind of node that the graph has, how a runtime may read it; the first is as written."""
    if any(_bias_codes(s, node) for node in nodes):
        text = "takes the codes of the bias as multiples of x_scale * w_scale instead of its own scale"
        yield _NONE, Deviation(text, 1, _with_other_bias)
    names = dict.fromkeys(node.op_type for node in nodes if not node.domain and node.op_type in _ELEMENTWISE)
    for name in names:
        yield _NONE, *(Deviation(f"computes {o} instead of {name}", 1, _as(name, o)) for o in _ELEMENTWISE if o != name)
    if any(_source(s, node) for node in nodes):
        text = "skips each QuantizeLinear whose codes a DequantizeLinear turns back"
        yield _NONE, Deviation(text, 1, _unrounded)


def _as(name: str, other: str) -> _Compute:
    """A node as another operator of the same version of the opset."""
    return lambda node, s: (
        made[0] if node.op_type == name and (made := compute_node(replace(node, op_type=other), s.args)) else None
    )


def _bias_codes(s: Suspect, node: Node) -> tuple[Node, Node, Node] | None:
    """The DequantizeLinear nodes of x, the weights and the bias of a product; None if it has not all three."""
    if node.domain or node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.inputs) < 3:
        return None
    x, w, b = (s.model.producers.get(name) for name in node.inputs[:3])
    if x is None or w is None or b is None or {n.op_type for n in (x, w, b)} != {"DequantizeLinear"}:
        return None
    return x, w, b


def _with_other_bias(node: Node, s: Suspect) -> Array | None:
    """A product whose bias has the scale of its sums."""
    known = _bias_codes(s, node)
    if known is None:
        return None
    scale = [s.values[part.inputs[1]].astype(np.float64) for part in known[:2]]
    bias = (s.values[known[2].inputs[0]] * (scale[0].reshape(-1)[0] * scale[1])).astype(np.float32)
    made = compute_node(node, [*s.args[:2], bias, *s.args[3:]])
    return None if made is None else made[0]


def _source(s: Suspect, node: Node) -> Node | None:
    """The QuantizeLinear that a DequantizeLinear of the same parameters undoes; None if there is none."""
    made_by = s.model.producers.get(node.inputs[0]) if node.op_type == "DequantizeLinear" else None
    if made_by is None or made_by.op_type != "QuantizeLinear" or len(node.inputs) != len(made_by.inputs):
        return None
    pairs = zip(made_by.inputs[1:], node.inputs[1:], strict=True)
    equal = all(a == b or same(s.values[a], s.values[b]) for a, b in pairs)
    return made_by if equal else None


def _unrounded(node: Node, s: Suspect) -> Array | None:
    """The tensor before a QuantizeLinear, in place of its dequantized codes."""
    source = _source(s, node)
    return None if source is None else s.values[source.inputs[0]]
