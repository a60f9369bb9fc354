"""Predicts which nodes of a quantized model a runtime or device computes in integers, from rules in JSON files.

A target is a JSON file of this package. Each of its rules names operators and a condition on their nodes. `otherwise`
says what the target does with a node that fails the condition: it computes the node in `float`, or does not load the
model (`refused`, with the message `error`). Nodes that pass all rules run in integers. `@NAME` means the operators
under `sets`. `cause` says why a failing node is in float, `why` is the target's reason, `fix` what to change; with
`chosen`, the model's author left the node in float. `since` and `until` are the first and the last of the versions
under `measured` that have the rule; null means the first, or the last, of all. `proof` says how the rule is known:
from the target's source, from an oracle (observed behaviour of the target), or from both.

A condition is one of

    {"all": [..]} {"any": [..]} {"not": c} {"use": NAME}      NAME is defined under `define`
    {"port": P, FACT: TEST, ..}      facts of a tensor at the node; an omitted input passes
    {"attr": A, "default": d, TEST}  an attribute
    {"opset": TEST}                  the model's version of ai.onnx
    {"option": NAME, TEST}           a user's option; the defaults are under `options`
    {"same": FACT, "ports": [P, ..]} the fact is the same at all ports; "parameters" are type, scale and zero point
    {"log2": {P: k, ..}, "min": a, "max": b, "tol": t}        the sum of k log2(scale of P) is from a to b

A port is the number of an input; x, w or b (inputs 0, 1, 2); inputs (all that represent real numbers); data (the inputs
among these that are not stored); y (output 0); outputs. Every tensor has the facts given, quantized, type, real (the
type outside the codes), rank. An input also has const. An output also has readers (their number), graph_output, next
(the operator of the only reader, if that has one reader too). A quantized tensor also has declared (its type in the
file; `type` is the one that the target gives it), scale, zero, zero_given, per (tensor, channel or block), axis,
axis_back (from the end: 1 is the last). A quantized output also has spread (the target adds its QuantizeLinear, with
the parameters of a dequantized input). A test is a value, a list of values, or some of min, max, not. `prepare` says
how the target changes the graph first (`Preparation`).

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
    chosen: did the model's author leave the node in float, so that nothing is wrong? error: the target's message if it
    does not load the model.
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
        """Whether the rule is about this operator."""
        return op_type in self.operators if self.operators else op_type not in self.excepted


@frozen
class Judged:
    """A node that runs in integers, or that the file wants to run in integers.

    rule: the first rule that keeps it in float, or None. x: the element type that the target gives its input 0.
    """

    scope: Scope
    node: Node
    rule: TargetRule | None
    x: str = ""

    @property
    def integer(self) -> bool:
        """Whether the runtime computes the node in integers."""
        return self.rule is None


@frozen
class DeployTarget:
    """A runtime or device: its name for users, its version, its machines (`on`), and its rules of that version."""

    id: str
    name: str
    version: str
    on: str
    rules: tuple[TargetRule, ...]
    define: Mapping[str, Condition]
    options: Mapping[str, Any]
    preparation: Preparation

    def judge(self, model: Model) -> Sequence[Judged]:
        """Judge the nodes that run in integers or should, also in subgraphs."""
        return [judged for scope in scopes(model) for judged in self._judge(scope)]

    def _judge(self, scope: Scope) -> Iterator[Judged]:
        """Judge the nodes of a graph that read quantized tensors."""
        if scope.model.op_types.isdisjoint(BOTH):
            return
        view = TargetView(scope, self.preparation)
        conditions = Conditions(view, self.define, self.options, self.preparation.makes_unsigned)
        for op in view.ops:
            if op.node is not None and reads_codes(view, op):
                rule = self._first(conditions, op)
                if rule is None or is_asked(view, op):
                    x = next((facts["type"] for facts in conditions.at(op, "x")), "")
                    yield Judged(scope, op.node, rule, x)

    def _first(self, conditions: Conditions, op: Op) -> TargetRule | None:
        """The first rule that keeps a node from integers; None if there is none."""
        fitting = (rule for rule in self.rules if rule.concerns(op.op_type))
        return next((rule for rule in fitting if not conditions.hold(op, rule.require)), None)


@frozen
class InFloat:
    """A rule that keeps nodes in float, and these nodes."""

    KEYS = keys("id=rule.id cause=rule.cause fix=rule.fix nodes")

    rule: TargetRule
    judged: tuple[Judged, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(judged.scope.path + judged.node.label for judged in self.judged)


@frozen
class Count:
    """The number of nodes of an operator that should run in integers, and the number that do (`integer`)."""

    op: str
    nodes: int
    integer: int


@frozen
class Integers:
    """Which nodes of a quantized model a target computes in integers, by operator, and why others stay in float.

    runtime: the target's name and version. on: the machines that it runs on.
    """

    KEYS = keys("target runtime on operators in_float=causes")

    target: str
    runtime: str
    on: str
    judged: tuple[Judged, ...]

    @property
    def operators(self) -> tuple[Count, ...]:
        """For each operator, how many nodes there are and how many run in integers."""
        nodes = Counter(j.node.op for j in self.judged)
        integer = Counter(j.node.op for j in self.judged if j.integer)
        return tuple(Count(op, count, integer[op]) for op, count in nodes.most_common())

    @property
    def causes(self) -> tuple[InFloat, ...]:
        """The causes, in the order of their first nodes; rules with the same `cause` text are one cause."""
        found: dict[str, tuple[TargetRule, list[Judged]]] = {}
        for judged in self.judged:
            if judged.rule is not None:
                found.setdefault(judged.rule.cause, (judged.rule, []))[1].append(judged)
        return tuple(InFloat(rule, tuple(of)) for rule, of in found.values())

    def count(self, op_type: str) -> int:
        """The number of nodes of an operator."""
        return sum(judged.node.op_type == op_type for judged in self.judged)

    def __str__(self) -> str:
        return ", ".join(f"{each.integer} of {each.nodes} {each.op}" for each in self.operators)


@once_per_model
def integers(model: Model) -> Integers | None:
    """The nodes that onnxruntime computes in integers on x86 CPUs; None if the model has no quantized activations."""
    known = target("onnxruntime-cpu")
    judged = tuple(known.judge(model))
    return Integers(known.id, f"{known.name} {known.version}", known.on, judged) if judged else None


@cache
def target(name: str) -> DeployTarget:
    """Load a target, such as `onnxruntime-cpu`, with the rules of its newest measured version."""
    data = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    newest = data["measured"][-1]
    rules = tuple(_rule(r, data["sets"]) for r in data["rules"] if _applies(r, newest))
    prepared = Preparation(**data["prepare"])
    return DeployTarget(name, data["name"], newest, data["on"], rules, data["define"], data["options"], prepared)


def _applies(rule: Mapping[str, Any], version: str) -> bool:
    """Whether a rule holds for a version of the runtime."""
    since, until, now = (_numbers(v) for v in (rule.get("since"), rule.get("until"), version))
    return (not since or since <= now) and (not until or now <= until)


def _numbers(version: str | None) -> tuple[int, ...]:
    """A version as numbers."""
    return tuple(int(part) for part in version.split(".")) if version else ()


def _rule(data: Mapping[str, Any], sets: Mapping[str, Sequence[str]]) -> TargetRule:
    """A rule from its JSON; "@name" stands for a set of operators."""
    operators, excepted = (
        tuple(op for name in data.get(key, ()) for op in (sets[name[1:]] if name.startswith("@") else (name,)))
        for key in ("operators", "excepted")
    )
    given = {field.name: data[field.name] for field in fields(TargetRule) if field.name in data}
    return TargetRule(**{**given, "operators": operators, "excepted": excepted})
