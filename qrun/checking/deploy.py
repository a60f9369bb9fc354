"""What ``qrun check --target`` says about a model: the result for each target, and its reasons as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrun.checking.rules import Finding
from qrun.checking.rules._rule import Level
from qrun.checking.rules._scope import nodes
from qrun.checking.targets import (
    CONSEQUENCES,
    DeployTarget,
    IntegerCount,
    TargetReason,
    TargetRule,
    TargetVerdict,
)
from qrun.declare.frozen import frozen, keys
from qrun.ir import Model
from qrun.ops import quantized_operators

LEVEL_OF: dict[str, Level] = {
    **dict.fromkeys(("wrong", "crash", "refused"), "error"),
    **dict.fromkeys(("cpu", "float"), "warning"),
    **dict.fromkeys(("weight-only", "slow", "note"), "note"),
}
"""The level of a finding for each consequence."""
BOUNDS = ("float", "cpu", "refused", "wrong")
"""The consequences that --fail-on takes."""
NOT_QUANTIZED = TargetRule(
    "float-model",
    (),
    (),
    {"all": []},
    "float",
    "no node of the model is quantized, so all of it is computed in float",
    "quantize the model first, for example with quantize_static of onnxruntime, then check the result",
    proof="definition",
)
"""The rule that a float model breaks for every target."""


@frozen
class TargetResult:
    """The result of one target for one model.

    nodes: the number of nodes judged. broken: the number of them that break a rule. reasons: worst first. ops: the
    operator with domain and version of each reason's first node; "" for a reason that is about no node.
    """

    KEYS = keys(
        "target=target.id name=target.name version=target.version on=target.on options=target.options worst nodes broken"
        " reasons integers not_judged=target.not_judged proof=target.proof verified=target.verified"
    )

    target: DeployTarget
    nodes: int
    broken: int
    reasons: tuple[TargetReason, ...]
    integers: tuple[IntegerCount, ...]
    ops: tuple[str, ...] = ()

    @property
    def worst(self) -> str:
        """The worst consequence; "int" if no node breaks a rule."""
        return self.reasons[0].consequence if self.reasons else "int"

    def has(self, *consequences: str) -> bool:
        """Whether a reason has one of these consequences."""
        return any(reason.consequence in consequences for reason in self.reasons)

    def id_of(self, reason: TargetReason) -> str:
        """The id of a reason's rule: ``tensorrt/zero-point-0``."""
        return rule_id(self.target, reason.rule)


def rule_id(target: DeployTarget, rule: TargetRule) -> str:
    """``tensorrt/zero-point-0``."""
    return f"{target.id}/{rule.id}"


def judge_for(target: DeployTarget, model: Model) -> TargetResult:
    """Judge a model for a target."""
    verdict = target.verdict(model)
    reasons, broken = verdict.reasons, verdict.broken
    if not is_quantized(model):
        reasons, broken = (*reasons, _not_quantized(verdict)), len(verdict.judged)
        reasons = tuple(sorted(reasons, key=lambda r: -CONSEQUENCES.index(r.consequence)))
    of = {each.label: each.scope.at(each.node)["op"] for each in reversed(verdict.judged) if each.rules}
    ops = tuple(of.get(reason.nodes[0], "") if reason.nodes else "" for reason in reasons)
    return TargetResult(target, len(verdict.judged), broken, reasons, verdict.integers, ops)


def is_quantized(model: Model) -> bool:
    """Whether any node, also of a subgraph, has scales or zero points."""
    known = {op_type for _, op_type in quantized_operators()}
    return any(node.op_type in known for _, node in nodes(model))


def _not_quantized(verdict: TargetVerdict) -> TargetReason:
    """The reason of a model without quantized nodes; it is about no node in particular."""
    return TargetReason(NOT_QUANTIZED, NOT_QUANTIZED.otherwise, (), {}, ())


def target_findings(result: TargetResult) -> Iterator[Finding]:
    """Yield a finding for each reason: its first node, and the others as `Finding.others`."""
    for reason, op in zip(result.reasons, result.ops, strict=True):
        rule, first = reason.rule, reason.nodes[:1]
        message = f"{rule.cause} ({counts_text(reason)})" if first else rule.cause
        yield Finding(
            f"{sentence_name(result.target)}: {message}",
            node=first[0] if first else "",
            index=reason.index if first else None,
            op=op,
            got=next(filter(None, reason.seen), ""),
            why=". ".join(filter(None, [rule.why, says_text(rule)])),
            fix=rule.fix,
            rule=result.id_of(reason),
            name=reason.consequence,
            level=LEVEL_OF[reason.consequence],
            others=reason.nodes[1:],
        )


def sentence_name(target: DeployTarget) -> str:
    """``onnxruntime 1.32.0``."""
    return f"{target.name} {target.version}".strip()


def says_text(rule: TargetRule) -> str:
    """The target's own message in quotes; "" if there is none."""
    return f'it says "{rule.says}"' if rule.says else ""


def counts_text(reason: TargetReason) -> str:
    """``142 QuantizeLinear, 3 Conv``."""
    return ", ".join(f"{count} {op}" for op, count in reason.operators.items())


def is_of_target(finding: Finding) -> bool:
    """Whether the finding is a target's reason."""
    return "/" in finding.rule


def at_least(finding: Finding, bound: str) -> bool:
    """Whether a target's finding has this consequence or a worse one."""
    return CONSEQUENCES.index(finding.name) >= CONSEQUENCES.index(bound)


def rule_ids(targets: Sequence[DeployTarget]) -> tuple[str, ...]:
    """The ids of all rules of these targets."""
    return tuple(rule_id(target, rule) for target in targets for rule in target.rules)
