"""Emulates what onnxruntime computes on other CPUs: every node in its arithmetic, sums as that CPU's kernels add them.
Also runs a group of nodes in each form that a runtime may give it: as written, fused or rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Unpack

import numpy as np

from qrun.comparing.biases import bias_scale_rewrites
from qrun.comparing.causes import AlternativeForm, Suspect
from qrun.comparing.causes.pairs import PairLosses, with_saturating_pairs
from qrun.comparing.differences import same
from qrun.comparing.rewrites import KINDS, Kind, apply_rewrites, sum_bound, with_unsigned_activations
from qrun.comparing.sides import QrunSide, Unit, Values, extract, run_alone
from qrun.comparing.ties import before_rounding
from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.memory import Budget, ResourceLimits, default_limit
from qrun.ops import Arith
from qrun.ops._quantize import limits
from qrun.passes import optimize


@frozen(slots=False)
class EmulatedSide(QrunSide):
    """A side that runs the graph as onnxruntime fuses it, in onnxruntime's arithmetic.

    saturating: add uint8 * int8 products in saturating pairs, as vpmaddubsw does on x86 CPUs without VNNI? Otherwise
                sums are exact, as on all other CPUs.
    max_memory: bytes that all tensors may take. max_time: seconds that a node may take.
    """

    saturating: bool = False

    @property
    def label(self) -> str:
        """The side's name on screens."""
        where = "on x86 CPUs without VNNI" if self.saturating else "on CPUs with exact sums"
        return f"onnxruntime's arithmetic {where} (emulated)"

    @cached_property
    def _ran(self) -> tuple[Model, Mapping[int, tuple[int, ...]]]:
        """The optimized model, and the original nodes of each of its nodes."""
        done = optimize(self.model, frozenset(), "ort", "fused")
        return done.model, done.groups

    def _tensors(self, model: Model, feeds: Values, names: Sequence[str]) -> Values:
        """Run the model and return the named tensors."""
        return run_emulated(model, feeds, names, saturating=self.saturating, **self.limits)


def run_emulated(
    model: Model, feeds: Values, wanted: Iterable[str], *, saturating: bool = True, **limits: Unpack[ResourceLimits]
) -> dict[str, Array]:
    """Run a model in onnxruntime's arithmetic, node by node, and return the `wanted` tensors.

    saturating: add uint8 * int8 products in saturating pairs, except in depthwise convolutions: onnxruntime has exact
                kernels for these.
    Raises QrunError if a node cannot run, or takes more than `max_time`, or the tensors take more than `max_memory`.
    """
    values: dict[str, Array] = {**model.constants, **feeds}
    most = limits.get("max_memory")
    budget = Budget(default_limit if most is None else most)
    for node in model.nodes:
        made = run_alone(model, (_softmax(model, node) or node,), values, "reference", "ort", **limits)
        name = node.outputs[0] if node.outputs else ""
        if saturating and name in made and not _is_depthwise(node, values):
            suspect = Suspect(model, Unit(node, (node,)), name, values, made[name], None)
            changed = with_saturating_pairs(suspect, "ort", PairLosses()) or ()
            made |= {tensor: array for tensor, array in zip(node.outputs, changed, strict=False) if tensor}
        for array in made.values():
            budget.hold(array)
        values |= made
    return {name: values[name] for name in wanted}


def _softmax(model: Model, last: Node) -> Node | None:
    """The QLinearSoftmax into which onnxruntime fuses DequantizeLinear, Softmax and the QuantizeLinear `last`; None if
    `last` does not end such a group."""
    middle = model.producers.get(last.inputs[0]) if last.op_type == "QuantizeLinear" else None
    first = model.producers.get(middle.inputs[0]) if middle is not None and middle.op_type == "Softmax" else None
    if middle is None or first is None or first.op_type != "DequantizeLinear" or len(last.inputs) < 3:
        return None
    if len(first.inputs) < 3 or len(model.consumers[middle.outputs[0]]) > 1:
        return None
    old = middle.version < 13
    attributes = {"axis": middle.attributes.get("axis", 1 if old else -1), "opset": middle.version}
    return Node(
        last.index, middle.label, MS, "QLinearSoftmax", 1, (*first.inputs, *last.inputs[1:]), last.outputs, attributes
    )


def _is_depthwise(node: Node, values: Values) -> bool:
    """Whether a node is a depthwise QLinearConv."""
    group = node.attributes.get("group", 1)
    if node.op_type != "QLinearConv" or not isinstance(group, int) or group == 1:
        return False
    w = values[node.inputs[3]]
    return w.shape[1] == 1 and w.shape[0] == group and bool(np.ndim(w) >= 3)


_ARITHMETICS: tuple[tuple[bool, Arith], ...] = ((True, "ort"), (True, "exact"), (False, "ort"), (False, "exact"))
"""Pairs of: do groups become integer operators, and the arithmetic of all nodes."""
_SATURATING = "pairs of uint8 * int8 products saturate in int16, as on CPUs without VNNI"


@frozen(slots=False)
class NodeGroup:
    """A group of nodes and one tensor that it makes. inputs: the tensors that the group reads, by name."""

    model: Model
    unit: Unit
    tensor: str
    inputs: Values

    def forms(self) -> tuple[AlternativeForm, ...]:
        """The forms in which another runtime may run the group, simplest first; a single node has only rewrites."""
        rewritten = tuple(self._rewritten_forms("session-rewrite", KINDS))
        if len(self.unit.group) == 1:
            return rewritten
        plain = (self._form(fused, arith) for fused in (True, False) for arith in ("exact", "ort"))
        saturating = (self._form(True, "ort", True), self._form(False, "ort", True))
        return (*plain, *saturating, *self._rewritten_forms("bias-scale", (bias_scale_rewrites,)), *rewritten)

    def _rewritten_forms(self, cause: str, kinds: Sequence[Kind]) -> Iterator[AlternativeForm]:
        """The forms of the group after rewrites of these kinds; none if no rewrite applies. cause: the cause that they
        are."""
        model, texts = apply_rewrites(self.model, self._indices, kinds)
        if not texts:
            return
        bound = partial(sum_bound, self._nodes(model), self.tensor, {**model.constants, **self.inputs})
        for fused, arith in _ARITHMETICS:
            run = partial(self._run_rewritten, model, fused, arith)
            yield AlternativeForm(cause, "; ".join(texts), run, bound)
        unsigned, _ = apply_rewrites(with_unsigned_activations(self.model), self._indices, kinds)
        run = partial(self._run_rewritten, unsigned, True, "ort", True)
        yield AlternativeForm(cause, "; ".join((*texts, _SATURATING)), run)

    def _run_rewritten(self, model: Model, fused: bool, arith: Arith, saturating: bool = False) -> Array | None:
        """The tensor that the rewritten nodes compute; None if they cannot run, or if it equals the result of the
        original nodes or, with `saturating`, of the rewritten nodes without saturation."""
        made = self._run_part(self._cut(model, "exact" if fused else None), arith, saturating)
        others = [self._run(fused, arith, saturating)]
        if saturating:
            others.append(self._run_part(self._cut(model, "exact"), arith, False))
        return None if made is None or any(o is not None and same(made, o) for o in others) else made

    @cached_property
    def _indices(self) -> Set[int]:
        """The indices of the group's nodes."""
        return {node.index for node in self.unit.group}

    def _nodes(self, model: Model) -> tuple[Node, ...]:
        """The nodes of `model`, which may be rewritten, that have the indices of the group's nodes."""
        return tuple(node for node in model.nodes if node.index in self._indices)

    def _form(self, fused: bool, arith: Arith, saturating: bool = False) -> AlternativeForm:
        """Another way to compute the group, to be tried as a cause."""
        shape = "groups run as integer operators" if fused else "the graph runs as written"
        steps = "each result rounded once" if arith == "exact" and fused else "in float32 steps"
        pairs = f"; {_SATURATING}" if saturating else ""
        cause = "pair-saturation" if saturating else "fused-requantization"
        return AlternativeForm(cause, f"{shape}, {steps}{pairs}", cache(partial(self._run, fused, arith, saturating)))

    def _run(self, fused: bool, arith: Arith, saturating: bool) -> Array | None:
        """Compute the group's tensor in another way; None if that is not possible."""
        model = with_unsigned_activations(self.model) if saturating else self.model
        return self._run_part(self._cut(model, arith if fused else None), arith, saturating)

    def _run_part(self, part: Model | None, arith: Arith, saturating: bool) -> Array | None:
        """Run a cut-out model; None if that is not possible."""
        try:
            if part is None:
                return None
            if saturating:
                return run_emulated(part, self.inputs, [self.tensor])[self.tensor]
            return run_alone(part, part.nodes, self.inputs, None, arith).get(self.tensor)
        except (QrunError, KeyError):
            return None

    def _cut(self, model: Model, fused: Arith | None) -> Model | None:
        """The group as a model, fused into integer operators if `fused` names an arithmetic; None if that fails."""
        try:
            part = extract(model, self._nodes(model), self.inputs)
            part = replace(part, outputs=tuple(v for v in part.outputs if v.name == self.tensor))
            return part if fused is None else optimize(part, frozenset(), fused, "fused").model
        except (QrunError, KeyError):
            return None

    def before_rounding(self) -> Array | None:
        """The value that the group rounds if it fuses into one integer operator; None if it does not."""
        part = self._fused
        if part is None:
            return None
        values = {**part.constants, **self.inputs}
        return before_rounding(part.nodes[0], [values.get(name) for name in part.nodes[0].inputs])

    def fused_node(self, theirs: Array | None) -> Suspect | None:
        """The integer operator that the group fuses into, if it can run, as a suspect. theirs: the other's result."""
        part = self._fused if len(self.unit.group) > 1 else None
        mine = None if part is None else self._run(True, "exact", False)
        if part is None or mine is None:
            return None
        node = part.nodes[0]
        return Suspect(part, Unit(node, (node,)), self.tensor, {**part.constants, **self.inputs}, mine, theirs)

    def integer_node(self, theirs: Array) -> tuple[Suspect, int, int] | None:
        """The integer operator that computes the group's sums, with the ends of its codes: those of their type, or
        nearer ones where a Relu or Clip limits them. theirs: the other side's result. None if there is no operator."""
        low, high = limits(theirs.dtype)
        node, part, values = self.unit.node, self.model, self.inputs
        if len(self.unit.group) > 1:
            found = without_clamps(self.model, self.unit.group, self.tensor, self.inputs, (low, high))
            if found is None:
                return None
            model, group, (low, high) = found
            fused = NodeGroup(model, Unit(node, group, self.unit.given), self.tensor, self.inputs)._fused
            if fused is None:
                return None
            node, part, values = fused.nodes[0], fused, {**fused.constants, **self.inputs}
        return Suspect(part, Unit(node, (node,)), self.tensor, values, theirs, theirs), low, high

    @cached_property
    def _fused(self) -> Model | None:
        """The group as one integer operator; None if it does not fuse."""
        part = self._cut(self.model, "exact")
        return part if part is not None and len(part.nodes) == 1 else None


def without_clamps(
    model: Model, group: Sequence[Node], tensor: str, inputs: Values, ends: tuple[int, int]
) -> tuple[Model, tuple[Node, ...], tuple[int, int]] | None:
    """The model and a group that ends in QuantizeLinear without the Relu and Clip before it, and the ends of the codes
    with them. None if the parameters of these are not known, or not of one element."""
    last = next((node for node in group if tensor in node.outputs), None)
    if last is None or last.op_type != "QuantizeLinear":
        return model, tuple(group), ends
    known, producers = {**model.constants, **inputs}, {name: node for node in group for name in node.outputs}
    scale, zero = (known.get(name) for name in (*last.inputs[1:], "")[:2])
    low, high, gone, name = -np.inf, np.inf, set[int](), last.inputs[0]
    while (node := producers.get(name)) is not None and node.op_type in ("Relu", "Clip"):
        least, most = (0.0, np.inf) if node.op_type == "Relu" else _clip_bounds(node, known)
        low, high, name = max(low, least), min(high, most), node.inputs[0]
        gone.add(node.index)
    if not gone:
        return model, tuple(group), ends
    if scale is None or scale.size != 1 or (zero is not None and zero.size != 1) or np.isnan([low, high]).any():
        return None
    step, shift = float(scale.reshape(())), 0 if zero is None else int(zero.reshape(()))
    narrowed = tuple(int(np.clip(np.rint(each / step) + shift, *ends)) for each in (low, high))
    joined = replace(last, inputs=(name, *last.inputs[1:]))
    kept = tuple(joined if node is last else node for node in group if node.index not in gone)
    nodes = tuple(joined if node is last else node for node in model.nodes if node.index not in gone)
    return replace(model, nodes=nodes), kept, (narrowed[0], narrowed[1])


def _clip_bounds(node: Node, known: Values) -> tuple[float, float]:
    """The bounds of a Clip; NaN where one is not known."""
    given = [node.attributes.get("min"), node.attributes.get("max")]
    for at, name in enumerate(node.inputs[1:3]):
        if name:
            value = known.get(name)
            given[at] = float("nan") if value is None or value.size != 1 else float(value.reshape(()))
    low, high = given
    return (low if isinstance(low, float) else -np.inf), (high if isinstance(high, float) else np.inf)
