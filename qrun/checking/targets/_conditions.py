"""Conditions of a target's rules, and whether they hold at an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.checking.targets._facts import Facts, ports
from qrun.checking.targets._view import Op, TargetView

Condition = Mapping[str, Any]
_OF_SCALES = ("scale", "zero", "zero_given", "per", "axis", "axis_back", "declared", "spread")
_PARAMETERS = ("declared", "scale", "zero", "zero_given")


@dataclass(frozen=True)
class Conditions:
    """The conditions of one target at the operators of one graph.

    define: conditions by name. options: what a user may set, such as the architecture.
    """

    view: TargetView
    define: Mapping[str, Condition]
    options: Mapping[str, Any]
    retyped: bool

    def hold(self, op: Op, condition: Condition) -> bool:
        """Whether a condition holds. A test of an unknown fact passes."""
        for key, check in _KINDS.items():
            if key in condition:
                return check(self, op, condition)
        raise ValueError(f"not a condition: {condition}")

    def at(self, op: Op, port: str) -> list[Facts]:
        return [facts for facts in ports(self.view, op, port, self.retyped) if facts["given"]]


def _use(c: Conditions, op: Op, condition: Condition) -> bool:
    return c.hold(op, c.define[condition["use"]])


def _all(c: Conditions, op: Op, condition: Condition) -> bool:
    return all(c.hold(op, part) for part in condition["all"])


def _any(c: Conditions, op: Op, condition: Condition) -> bool:
    return any(c.hold(op, part) for part in condition["any"])


def _not(c: Conditions, op: Op, condition: Condition) -> bool:
    return not c.hold(op, condition["not"])


def _same(c: Conditions, op: Op, condition: Condition) -> bool:
    keys = _PARAMETERS if condition["same"] == "parameters" else (condition["same"],)
    found = [facts for port in condition["ports"] for facts in c.at(op, port)]
    return all(len({str(np.asarray(facts.get(key)).tolist()) for facts in found}) <= 1 for key in keys)


def _log2(c: Conditions, op: Op, condition: Condition) -> bool:
    total: Any = np.zeros(1)
    for port, factor in condition["log2"].items():
        for facts in c.at(op, port):
            if "scale" not in facts:
                return True
            with np.errstate(divide="ignore", invalid="ignore"):
                term = factor * np.log2(facts["scale"])
            if 1 not in (term.size, total.size) and term.size != total.size:
                return False
            total = total + term
    slack = condition.get("tol", 0)
    within = (total >= condition.get("min", -np.inf) - slack) & (total <= condition.get("max", np.inf) + slack)
    return bool(np.all(np.isfinite(total) & within))


def _attribute(c: Conditions, op: Op, condition: Condition) -> bool:
    value = op.node.attributes.get(condition["attr"], condition.get("default")) if op.node is not None else None
    return value is None or _passes(value, _test(condition, "attr", "default")) is not False


def _option(c: Conditions, op: Op, condition: Condition) -> bool:
    return _passes(c.options.get(condition["option"]), _test(condition, "option")) is not False


def _opset(c: Conditions, op: Op, condition: Condition) -> bool:
    return _passes(c.view.scope.model.opsets.get(""), condition["opset"]) is not False


def _port(c: Conditions, op: Op, condition: Condition) -> bool:
    tests = {key: test for key, test in condition.items() if key != "port"}
    for facts in ports(c.view, op, condition["port"], c.retyped):
        if not facts["given"] and "given" not in tests:
            continue
        for key, test in tests.items():
            if key in _OF_SCALES and not facts["quantized"]:
                continue
            if _passes(facts.get(key), test) is False:
                return False
    return True


_KINDS = {
    "use": _use,
    "all": _all,
    "any": _any,
    "not": _not,
    "same": _same,
    "log2": _log2,
    "attr": _attribute,
    "option": _option,
    "opset": _opset,
    "port": _port,
}


def _test(condition: Condition, *others: str) -> Any:
    return condition["is"] if "is" in condition else {k: v for k, v in condition.items() if k not in others}


def _passes(value: Any, test: Any) -> bool | None:
    """Whether a value, or each of several, passes a test; None if it is not known."""
    if value is None:
        return None
    if isinstance(value, (list, tuple, np.ndarray)):
        results = [_passes(part, test) for part in value]
        return None if None in results else all(results)
    if not isinstance(test, Mapping):
        return value in test if isinstance(test, list) else bool(value == test)
    return (
        ("min" not in test or value >= test["min"])
        and ("max" not in test or value <= test["max"])
        and ("not" not in test or value not in test["not"])
    )
