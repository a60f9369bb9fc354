"""What onnxruntime computes on another CPU, recomputed on this one: each node in its arithmetic, with sums of products as that
CPU's kernels add them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from qrun.comparing.causes import Suspect
from qrun.comparing.causes._product import resumed
from qrun.comparing.causes.saturation import lost_in_pairs
from qrun.comparing.sides import Unit, Values, extract, grouped, run_alone
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.memory import Budget, default_limit
from qrun.passes import optimize


@frozen(slots=False)
class EmulatedSide:
    """The graph as onnxruntime fuses it, in its arithmetic.

    saturating: are uint8 * int8 products added in saturating pairs, as by vpmaddubsw on x86 CPUs without VNNI? Else sums are
                exact, as on all other CPUs.
    max_memory: bytes that all tensors may take. max_time: seconds that a node may take.
    """

    model: Model
    saturating: bool
    name: str
    max_memory: int | None = None
    max_time: float | None = None

    @property
    def label(self) -> str:
        where = "on x86 CPUs without VNNI" if self.saturating else "on CPUs with exact sums"
        return f"onnxruntime's arithmetic {where} (emulated)"

    @cached_property
    def _ran(self) -> tuple[Model, Mapping[int, tuple[int, ...]]]:
        done = optimize(self.model, frozenset(), "ort", "fused")
        return done.model, done.groups

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        return grouped(self.model, *self._ran)

    def run(self, feeds: Values) -> Mapping[str, Array | None]:
        model, _ = self._ran
        known = set(self.model.producers)
        names = [name for node in model.nodes for name in node.outputs if name in known]
        return self._run(model, feeds, names)

    def alone(self, unit: Unit, values: Values) -> Mapping[str, Array | None]:
        model, groups = self._ran
        wanted = {node.index for node in unit.group}
        part = extract(model, [n for n in model.nodes if wanted >= set(groups.get(n.index, (n.index,)))], values)
        made = [name for node in part.nodes for name in node.outputs if name]
        return self._run(part, values, made)

    def _run(self, model: Model, feeds: Values, wanted: Iterable[str]) -> dict[str, Array]:
        return run_emulated(
            model, feeds, wanted, saturating=self.saturating, max_memory=self.max_memory, max_time=self.max_time
        )


def run_emulated(
    model: Model,
    feeds: Values,
    wanted: Iterable[str],
    *,
    saturating: bool = True,
    max_memory: int | None = None,
    max_time: float | None = None,
) -> dict[str, Array]:
    """The tensors asked for, every node in onnxruntime's arithmetic.

    saturating: add uint8 * int8 products in saturating pairs. Depthwise convolutions have kernels of their own there, which
                are exact.
    Raises QrunError if a node cannot run, or takes more than `max_time`, or the tensors take more than `max_memory`.
    """
    values: dict[str, Array] = {**model.constants, **feeds}
    budget = Budget(default_limit if max_memory is None else max_memory)
    for node in model.nodes:
        made = run_alone(model, (_softmax(model, node) or node,), values, "reference", "ort", max_memory, max_time)
        name = node.outputs[0] if node.outputs else ""
        if saturating and name in made and not _is_depthwise(node, values):
            suspect = Suspect(model, Unit(node, (node,)), name, values, made[name], None)
            lost = lost_in_pairs(suspect)
            changed = resumed(suspect, lost[0], "ort") if lost else None
            made[name] = made[name] if changed is None else changed
        for array in made.values():
            budget.hold(array)
        values |= made
    return {name: values[name] for name in wanted}


def _softmax(model: Model, last: Node) -> Node | None:
    """DequantizeLinear, Softmax and this QuantizeLinear as the QLinearSoftmax that onnxruntime makes of them."""
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
    group = node.attributes.get("group", 1)
    if node.op_type != "QLinearConv" or not isinstance(group, int) or group == 1:
        return False
    w = values[node.inputs[3]]
    return w.shape[1] == 1 and w.shape[0] == group and bool(np.ndim(w) >= 3)
