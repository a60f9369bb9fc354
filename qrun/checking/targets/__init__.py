"""Which nodes of a quantized model runtimes and devices compute in integers: their rules as data, and their reader.

A target is a JSON file of this package. Each of its rules names operators and what a node of theirs must fulfil;
`otherwise` says what the target does with a node that does not: it computes it in `float`, or does not load the model
(`refused`, with the words `error`). Nodes that fulfil all run in integers. `@NAME` stands for the operators under
`sets`. `cause` says why such a node is in float, `why` is the target's reason, `fix` what to change; with `chosen`, the
model's author left the node in float. `since` and `until` are the first and the last of the versions under `measured`
that have the rule; null: the first, or the last, of all has it. `proof` says how a rule is known: from the target's
source, from an oracle (what the target was seen to do), or from both.

A condition is one of

    {"all": [..]} {"any": [..]} {"not": c} {"use": NAME}      NAME stands under `define`
    {"port": P, FACT: TEST, ..}      facts of a tensor at the node; an input that is left out passes
    {"attr": A, "default": d, TEST}  an attribute
    {"opset": TEST}                  the model's version of ai.onnx
    {"option": NAME, TEST}           what a user may set; the defaults stand under `options`
    {"same": FACT, "ports": [P, ..]} one fact is the same at all; "parameters" are type, scale and zero point
    {"log2": {P: k, ..}, "min": a, "max": b, "tol": t}        the sum of k log2(scale of P) is from a to b

A port is the number of an input; x, w or b (inputs 0, 1, 2); inputs (all that stand for real numbers); data (all of
these that are not stored); y (output 0); outputs. Every tensor has the facts given, quantized, type, real (the type
outside the codes), rank. An input also has const. An output also has readers (how many), graph_output, next (the only
reader, if it has one reader too). A quantized tensor also has declared (its type in the file; `type` is the one that
the target gives it), scale, zero, zero_given, per (tensor, channel or block), axis, axis_back (from the end: 1 is the
last). A quantized output also has spread (the target adds its QuantizeLinear, with the parameters of a dequantized
input). A test is a value, a list of values, or some of min, max, not. `prepare` says what the target makes of the graph
first (`Preparation`).

May be imported by the rules and everything above them. Knows operators as the files name them, and no runtime.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from qrun.checking.rules._scope import Scope, scopes
from qrun.checking.targets._conditions import Condition, Conditions, is_asked, reads_codes
from qrun.checking.targets._view import BOTH, Op, Preparation, TargetView
from qrun.declare.frozen import frozen, keys
from qrun.ir import Model, Node, once_per_model

__all__ = ["Count", "DeployTarget", "InFloat", "Integers", "Judged", "TargetRule", "integers", "target"]


@frozen
class TargetRule:
    """One rule of a target.

    cause:  why the node is in float, as a clause. why: the target's reason. fix: what to change.
    chosen: the model's author left the node in float, so nothing is wrong. error: what the target says where it does
    not load the model.
    """

    id: str
    operators: tuple[str, ...]
    excepted: tuple[str, ...]
    require: Condition
    otherwise: str
    cause: str
    fix: str
    why: str = ""
    chosen: bool = False
    error: str = ""

    def concerns(self, op_type: str) -> bool:
        return op_type in self.operators if self.operators else op_type not in self.excepted


@frozen
class Judged:
    """A node that the file asks to run in integers, or that does.

    rule: the first rule that keeps it out of integers, or None. x: the element type that the target gives its input 0.
    """

    scope: Scope
    node: Node
    rule: TargetRule | None
    x: str = ""

    @property
    def integer(self) -> bool:
        return self.rule is None


@frozen
class DeployTarget:
    """A runtime or device: its name for users, its version, and its rules of that version."""

    id: str
    name: str
    version: str
    on: str
    rules: tuple[TargetRule, ...]
    define: Mapping[str, Condition]
    options: Mapping[str, Any]
    preparation: Preparation

    def judge(self, model: Model) -> Sequence[Judged]:
        """The model's nodes that are to run in integers or do, also in graphs inside nodes."""
        return [judged for scope in scopes(model) for judged in self._judge(scope)]

    def _judge(self, scope: Scope) -> Iterator[Judged]:
        if scope.model.op_types.isdisjoint(BOTH):
            return
        view = TargetView(scope, self.preparation)
        conditions = Conditions(view, self.define, self.options, self.preparation.retyped)
        for op in view.ops:
            if op.node is not None and reads_codes(view, op):
                rule = self._first(conditions, op)
                if rule is None or is_asked(view, op):
                    x = next((facts["type"] for facts in conditions.at(op, "x")), "")
                    yield Judged(scope, op.node, rule, x)

    def _first(self, conditions: Conditions, op: Op) -> TargetRule | None:
        fitting = (rule for rule in self.rules if rule.concerns(op.op_type))
        return next((rule for rule in fitting if not conditions.hold(op, rule.require)), None)


@frozen
class InFloat:
    """A reason why nodes stay in float: the rule, and the nodes."""

    KEYS = keys("id=rule.id cause=rule.cause fix=rule.fix nodes")

    rule: TargetRule
    judged: tuple[Judged, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(judged.scope.path + judged.node.label for judged in self.judged)


@frozen
class Count:
    """How many nodes of an operator are to run in integers, and how many of these do."""

    op: str
    nodes: int
    integer: int


@frozen
class Integers:
    """What a target makes of a quantized model: its nodes of each operator, and why some are in float.

    runtime: its name and version. on: the machines.
    """

    KEYS = keys("target runtime on operators in_float=causes")

    target: str
    runtime: str
    on: str
    judged: tuple[Judged, ...]

    @property
    def operators(self) -> tuple[Count, ...]:
        nodes = Counter(j.node.op for j in self.judged)
        integer = Counter(j.node.op for j in self.judged if j.integer)
        return tuple(Count(op, count, integer[op]) for op, count in nodes.most_common())

    @property
    def causes(self) -> tuple[InFloat, ...]:
        """In the order of their first nodes; rules with the same words are one cause."""
        found: dict[str, tuple[TargetRule, list[Judged]]] = {}
        for judged in self.judged:
            if judged.rule is not None:
                found.setdefault(judged.rule.cause, (judged.rule, []))[1].append(judged)
        return tuple(InFloat(rule, tuple(of)) for rule, of in found.values())

    def count(self, op_type: str) -> int:
        return sum(judged.node.op_type == op_type for judged in self.judged)

    def __str__(self) -> str:
        return ", ".join(f"{each.integer} of {each.nodes} {each.op}" for each in self.operators)


@once_per_model
def integers(model: Model) -> Integers | None:
    """What onnxruntime on x86 CPUs makes of a model; None if the model has no quantized activations."""
    known = target("onnxruntime-cpu")
    judged = tuple(known.judge(model))
    return Integers(known.id, f"{known.name} {known.version}", known.on, judged) if judged else None


@cache
def target(name: str) -> DeployTarget:
    """The target of that name: of `onnxruntime-cpu`, the rules of its newest version that was measured."""
    data = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    newest = data["measured"][-1]
    rules = tuple(_rule(r, data["sets"]) for r in data["rules"] if _applies(r, newest))
    prepared = Preparation(**data["prepare"])
    return DeployTarget(name, data["name"], newest, data["on"], rules, data["define"], data["options"], prepared)


def _applies(rule: Mapping[str, Any], version: str) -> bool:
    since, until, now = (_numbers(v) for v in (rule.get("since"), rule.get("until"), version))
    return (not since or since <= now) and (not until or now <= until)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version else ()


def _rule(data: Mapping[str, Any], sets: Mapping[str, Sequence[str]]) -> TargetRule:
    operators, excepted = (
        tuple(op for name in data.get(key, ()) for op in (sets[name[1:]] if name.startswith("@") else (name,)))
        for key in ("operators", "excepted")
    )
    given = {field.name: data[field.name] for field in fields(TargetRule) if field.name in data}
    return TargetRule(**{**given, "operators": operators, "excepted": excepted})
