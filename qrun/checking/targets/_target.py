"""Judges the nodes of a model by the rules of a target, and sums up the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qrun.checking.rules._scope import Scope, scopes
from qrun.checking.targets._conditions import Condition, Conditions
from qrun.checking.targets._facts import dequantizers, is_asked, neighbours, reads_codes
from qrun.checking.targets._seen import seen
from qrun.checking.targets._view import BOTH, Op, Preparation, TargetView
from qrun.declare.frozen import frozen, keys
from qrun.ir import Model, Node

CONSEQUENCES = ("int", "note", "slow", "weight-only", "float", "cpu", "wrong", "crash", "refused")
"""What a target does with a node, from the best to the one that hides all others: a model that does not load computes
nothing wrong."""
_PLACES = ("weight-only", "float", "cpu")
_FATAL = ("refused", "crash")
_ELSEWHERE = (*_PLACES, *_FATAL)
_UNJUDGED = ("Constant", "Identity")


@frozen
class TargetRule:
    """One rule of a target.

    cause:   what is wrong with a failing node, as a clause. why: the target's reason. fix: what to change.
    chosen:  did the model's author leave the node in float, so that nothing is wrong?
    fixable: does the node run in integers once its tensors are as the rule requires?
    always:  is a node that stays in float reported even if the file does not want it in integers?
    in_integers: does the rule concern only nodes that no other rule keeps from integers?
    says:    the target's own message; "" if it says nothing.
    source:  where the rule is from. proof: how it is known: source, docs, threads, oracle (observed behaviour).
    """

    id: str
    operators: tuple[str, ...]
    excepted: tuple[str, ...]
    require: Condition
    otherwise: str
    cause: str
    fix: str
    why: str = ""
    when: Condition | None = None
    chosen: bool = False
    fixable: bool = True
    always: bool = False
    in_integers: bool = False
    says: str = ""
    source: str = ""
    proof: str = ""

    def concerns(self, op_type: str) -> bool:
        """Whether the rule is about this operator."""
        if self.operators:
            return op_type in self.operators
        return op_type not in self.excepted and op_type not in BOTH

    def fails(self, conditions: Conditions, op: Op) -> bool:
        """Whether a node that the rule concerns breaks it; what the file leaves open counts as kept."""
        if self.when is not None and not conditions.hold(op, self.when):
            return False
        return conditions.hold(op, self.require) is False


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
class NodeVerdict:
    """What a target does with one node, in the words of CONSEQUENCES, and the rules that it breaks.

    seen:   for each rule, what broke it, in a few words; may be "".
    wanted: whether the file wants the node in integers. integer: whether it runs in integers. fixed: whether it does
            once all that can be fixed is fixed. All False for QuantizeLinear and DequantizeLinear.
    """

    scope: Scope
    node: Node
    rules: tuple[TargetRule, ...]
    seen: tuple[str, ...]
    wanted: bool = False
    integer: bool = False
    fixed: bool = False

    @property
    def consequence(self) -> str:
        """The worst consequence; "int" if the node breaks no rule."""
        return max((rule.otherwise for rule in self.rules), key=CONSEQUENCES.index, default="int")

    @property
    def label(self) -> str:
        """The node's name, with the path of its subgraph."""
        return self.scope.path + self.node.label


@frozen
class TargetReason:
    """A cause, and the nodes that have it.

    nodes: their names, in the order of the file. operators: how many nodes there are of each operator.
    seen:  what broke the rule at each node, such as "zero point 81"; may be "".
    """

    KEYS = keys("id=rule.id consequence cause=rule.cause says=rule.says fix=rule.fix proof=rule.proof nodes seen")

    rule: TargetRule
    consequence: str
    nodes: tuple[str, ...]
    operators: Mapping[str, int]
    seen: tuple[str, ...]
    index: int = 0
    """The index of the first node."""

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.nodes)


@frozen
class IntegerCount:
    """How many nodes of an operator the file wants in integers, how many run in integers now, and how many once all
    that can be fixed is fixed."""

    op: str
    nodes: int
    integer: int
    fixed: int


@frozen
class TargetVerdict:
    """What a target does with a model.

    judged: every node, also of subgraphs. worst: the worst consequence; "int" if no node breaks a rule.
    """

    target: DeployTarget
    judged: tuple[NodeVerdict, ...]

    @property
    def worst(self) -> str:
        """The worst consequence of all nodes."""
        return max((each.consequence for each in self.judged), key=CONSEQUENCES.index, default="int")

    @property
    def broken(self) -> int:
        """The number of nodes that break a rule."""
        return sum(bool(each.rules) for each in self.judged)

    @property
    def reasons(self) -> tuple[TargetReason, ...]:
        """The causes, the worst first, then those of most nodes."""
        found: dict[tuple[str, str], list[tuple[NodeVerdict, TargetRule, str]]] = {}
        for each in self.judged:
            for rule, value in zip(each.rules, each.seen, strict=True):
                found.setdefault((rule.otherwise, rule.cause), []).append((each, rule, value))
        reasons = [_reason(of) for of in found.values()]
        return tuple(sorted(reasons, key=lambda r: (-CONSEQUENCES.index(r.consequence), -r.count)))

    @property
    def integers(self) -> tuple[IntegerCount, ...]:
        """For each operator that the file wants in integers, how many nodes run so; most nodes first."""
        wanted = [each for each in self.judged if each.wanted]
        loads = not any(rule.otherwise in _FATAL for each in self.judged for rule in each.rules)
        counts = Counter(each.node.op for each in wanted)
        now = Counter(each.node.op for each in wanted if each.integer and loads)
        fixed = Counter(each.node.op for each in wanted if each.fixed)
        return tuple(IntegerCount(op, count, now[op], fixed[op]) for op, count in counts.most_common())

    @property
    def not_judged(self) -> tuple[str, ...]:
        """What rules cannot say about this target."""
        return self.target.not_judged

    @property
    def proof(self) -> str:
        """How the rules of the target are known, and whether it was run."""
        return self.target.proof


def _reason(of: Sequence[tuple[NodeVerdict, TargetRule, str]]) -> TargetReason:
    """The reason of the nodes that share a cause."""
    first, rule, _ = of[0]
    counts = Counter(each.node.op for each, _, _ in of)
    index = first.node.index if first.scope.index is None else first.scope.index
    nodes, values = tuple(each.label for each, _, _ in of), tuple(value for *_, value in of)
    return TargetReason(rule, rule.otherwise, nodes, dict(counts.most_common()), values, index)


@frozen
class DeployTarget:
    """A runtime or device, with the rules of one of its versions.

    name: for users. version: the one that the rules are of. versions: all that its file has. on: its machines.
    proof: how the rules are known. verified: whether the target was run to prove them. not_judged: what the rules
    cannot say.
    """

    id: str
    name: str
    version: str
    on: str
    rules: tuple[TargetRule, ...]
    define: Mapping[str, Condition]
    options: Mapping[str, Any]
    preparation: Preparation
    proof: str = ""
    verified: bool = False
    not_judged: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    def verdict(self, model: Model) -> TargetVerdict:
        """Judge a whole model, with its subgraphs."""
        return TargetVerdict(self, tuple(each for scope in scopes(model) for each in self._nodes(scope)))

    def judge(self, model: Model) -> Sequence[Judged]:
        """Judge the nodes that run in integers or should, also in subgraphs."""
        return [judged for scope in scopes(model) for judged in self._judge(scope)]

    def _conditions(self, scope: Scope) -> Conditions:
        """The conditions of this target at the nodes of a graph."""
        return Conditions(TargetView(scope, self.preparation), self.define, self.options)

    def _judge(self, scope: Scope) -> Iterator[Judged]:
        """Judge the nodes of a graph that read quantized tensors."""
        if scope.model.op_types.isdisjoint(BOTH):
            return
        conditions = self._conditions(scope)
        view = conditions.view
        for op in view.ops:
            if op.node is not None and reads_codes(view, op):
                rule = self._first(conditions, op)
                if rule is None or is_asked(view, op):
                    x = next((facts["type"] for facts in conditions.at(op, "x")), "")
                    yield Judged(scope, op.node, rule, x)

    def _first(self, conditions: Conditions, op: Op) -> TargetRule | None:
        """The first rule that keeps a node from integers; None if there is none."""
        broken = self._broken(conditions, op, self._by_operator(op.op_type))
        return next((rule for rule in broken if rule.otherwise in _ELSEWHERE), None)

    def _broken(self, conditions: Conditions, op: Op, rules: Sequence[TargetRule]) -> Sequence[TargetRule]:
        """Those of the rules that a node breaks."""
        broken = [rule for rule in rules if rule.fails(conditions, op)]
        away = any(rule.otherwise in _PLACES for rule in broken)
        return [rule for rule in broken if not (away and rule.in_integers)]

    def _nodes(self, scope: Scope) -> Sequence[NodeVerdict]:
        """Judge the nodes of a graph, in the order of the file."""
        conditions = self._conditions(scope)
        view = conditions.view
        together = set(view.fused.values())
        broken: dict[int, Sequence[TargetRule]] = {}
        judged = [op for op in view.ops if op.op_type not in _UNJUDGED and together.isdisjoint(op.outputs)]
        judged = [op for op in judged if op.op_type in BOTH or not view.folded(op)]
        rules_of = {kind: self._by_operator(kind) for kind in {op.op_type for op in judged}}
        for op in judged:
            broken[id(op)] = self._broken(conditions, op, rules_of[op.op_type])
        found: list[NodeVerdict] = []
        for op in judged:
            if op.node is not None:
                states = _states(view, op, broken)
                rules = _rules_to_report(broken[id(op)], states[0] or op.op_type in BOTH)
                values = tuple(seen(conditions, op, rule.require) for rule in rules)
                found.append(NodeVerdict(scope, op.node, rules, values, *states))
        return sorted(found, key=lambda each: each.node.index)

    def _by_operator(self, op_type: str) -> Sequence[TargetRule]:
        """The rules that concern an operator."""
        return [rule for rule in self.rules if rule.concerns(op_type)]


def _states(view: TargetView, op: Op, broken: Mapping[int, Sequence[TargetRule]]) -> tuple[bool, bool, bool]:
    """`wanted`, `integer` and `fixed` of NodeVerdict."""
    if op.op_type in BOTH or not (op.integer or dequantizers(view, op)):
        return False, False, False
    rules = [rule for near in (op, *neighbours(view, op)) for rule in broken.get(id(near), ())]
    away = [rule for rule in rules if rule.otherwise in _ELSEWHERE]
    wanted = op.integer or not away or is_asked(view, op)
    return wanted, wanted and not away, wanted and all(rule.fixable for rule in away)


def _rules_to_report(broken: Sequence[TargetRule], wanted: bool) -> tuple[TargetRule, ...]:
    """The rules that are reported, among those that a node breaks.

    Of the rules about where the node runs, only the first with the worst consequence: the others follow from it or do
    not matter. A node in float is reported only if the file wants it in integers, or the rule asks for it always.
    """
    places = [
        rule for rule in broken if rule.otherwise in _PLACES and (wanted or rule.always or rule.otherwise == "cpu")
    ]
    worst = max((rule.otherwise for rule in places), key=CONSEQUENCES.index, default="")
    place = next((rule for rule in places if rule.otherwise == worst), None)
    return tuple(rule for rule in broken if rule.otherwise not in _PLACES or rule is place)
