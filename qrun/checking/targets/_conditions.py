"""Evaluates the conditions of a target's rules at an operator, and says what a failing one saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.checking.targets._facts import Facts, ports
from qrun.checking.targets._hooks import HOOKS, Hook
from qrun.checking.targets._view import Op, TargetView

Condition = Mapping[str, Any]
_OF_SCALES = "scale zero zero_given per axis axis_back axis_given block declared spread scale_type scalar"
OF_SCALES = frozenset(_OF_SCALES.split())
"""Facts of quantized tensors only: their tests pass for other tensors."""
_PARAMETERS = ("declared", "scale", "zero", "zero_given")


@dataclass(frozen=True)
class Conditions:
    """Evaluates the conditions of one target at the operators of one graph.

    define: conditions by name. options: a user's options, such as the architecture.
    """

    view: TargetView
    define: Mapping[str, Condition]
    options: Mapping[str, Any]

    def hold(self, op: Op, condition: Condition) -> bool | None:
        """Does a condition hold at an operator? None if that depends on something that the file does not say."""
        c = condition
        if "use" in c:
            return self.hold(op, self.define[c["use"]])
        if "all" in c:
            return _all(lambda part: self.hold(op, part), c["all"])
        if "any" in c:
            return _not(_all(lambda part: _not(self.hold(op, part)), c["any"]))
        if "not" in c:
            return _not(self.hold(op, c["not"]))
        if "same" in c:
            return self._same(op, c)
        if "log2" in c:
            return self._within(op, c)
        if "port" in c:
            return self._fits(op, c)
        if "hook" in c:
            hook: Hook = HOOKS[c["hook"]]
            return hook(self.view, op)
        return self._plain(op, c)

    def _plain(self, op: Op, c: Condition) -> bool | None:
        """Does a condition on the node itself, the model or the user's options hold?"""
        if "attr" in c:
            if "present" in c:
                return bool((op.node is not None and c["attr"] in op.node.attributes) == c["present"])
            value = op.node.attributes.get(c["attr"], c.get("default")) if op.node is not None else None
            return value is None or _passes(value, _test(c, "attr", "default"))
        if "option" in c:
            return _passes(self.options.get(c["option"]), _test(c, "option"))
        if "opset" in c:
            return _passes(self.view.scope.model.opsets.get(""), c["opset"])
        if "domain" in c:
            return _passes(op.domain, c["domain"])
        names = op.inputs if "inputs" in c else op.outputs
        return _passes(sum(bool(name) for name in names), c["inputs"] if "inputs" in c else c["outputs"])

    def at(self, op: Op, port: str) -> list[Facts]:
        """The facts of a port's tensors."""
        return [facts for facts in ports(self.view, op, port) if facts["given"]]

    def _same(self, op: Op, c: Condition) -> bool:
        """Is a fact the same at all ports?"""
        keys = _PARAMETERS if c["same"] == "parameters" else (c["same"],)
        found = [facts for port in c["ports"] for facts in self.at(op, port)]
        return all(len({str(np.asarray(facts.get(key)).tolist()) for facts in found}) <= 1 for key in keys)

    def _within(self, op: Op, c: Condition) -> bool | None:
        """Is the logarithm of a product of scales within its limits?"""
        total = self.log2(op, c)
        if total is None:
            return None
        slack = c.get("tol", 0)
        within = (total >= c.get("min", -np.inf) - slack) & (total <= c.get("max", np.inf) + slack)
        return bool(np.all(np.isfinite(total) & within))

    def log2(self, op: Op, c: Condition) -> Any:
        """The logarithm of a product of scales; None if one is unknown, NaN if their numbers do not fit."""
        total: Any = np.zeros(1)
        for port, factor in c["log2"].items():
            found = self.at(op, port)
            if not found or any("scale" not in facts for facts in found):
                return None
            for facts in found:
                with np.errstate(divide="ignore", invalid="ignore"):
                    term = factor * np.log2(facts["scale"])
                if 1 not in (term.size, total.size) and term.size != total.size:
                    return np.full(1, np.nan)
                total = total + term
        return total

    def _fits(self, op: Op, c: Condition) -> bool | None:
        """Do the tensors of a port pass all tests?"""
        tests = {key: test for key, test in c.items() if key != "port"}
        results = []
        for facts in ports(self.view, op, c["port"]):
            if facts["given"] or "given" in tests:
                judged = [key for key in tests if key not in OF_SCALES or facts["quantized"]]
                results += [_passes(facts.get(key), tests[key]) for key in judged]
        return _all(lambda result: result, results)


def _all(hold: Callable[[Any], bool | None], parts: Any) -> bool | None:
    """False if a part does not hold; else None if one is not known."""
    unknown = False
    for part in parts:
        held = hold(part)
        if held is False:
            return False
        unknown |= held is None
    return None if unknown else True


def _not(held: bool | None) -> bool | None:
    """The opposite of what is known."""
    return None if held is None else not held


def _test(condition: Condition, *others: str) -> Any:
    """The test of a condition: its "is", or its own keys."""
    return condition["is"] if "is" in condition else {k: v for k, v in condition.items() if k not in others}


def _passes(value: Any, test: Any) -> bool | None:
    """Does a value, or each of several, pass a test? None if a value is not known."""
    if value is None:
        return None
    if isinstance(value, np.ndarray) and isinstance(test, Mapping) and value.dtype.kind == "f":
        return bool(_within(value, test).all())
    if isinstance(value, (list, tuple, np.ndarray)):
        return _all(lambda part: _passes(part, test), value)
    if not isinstance(test, Mapping):
        return value in test if isinstance(test, list) else bool(value == test)
    if isinstance(value, (str, bytes)):
        return value not in test.get("not", ())
    if not isinstance(value, (int, float, np.generic)):
        return None
    return bool(_within(np.asarray(value, np.float64), test).all())


def _within(values: Any, test: Mapping[str, Any]) -> Any:
    """Which numbers pass a test."""
    passed = np.ones(values.shape, bool)
    if "min" in test:
        passed &= values >= test["min"]
    if "max" in test:
        passed &= values <= test["max"]
    if "not" in test:
        passed &= ~np.isin(values, [v for v in test["not"] if not isinstance(v, str)])
    if "multiple" in test:
        passed &= values % test["multiple"] == 0
    if "pow2" in test:
        with np.errstate(invalid="ignore"):
            passed &= ((values > 0) & (np.frexp(values)[0] == 0.5)) == test["pow2"]
    if "near" in test:
        passed &= np.abs(values - test["near"][0]) <= test["near"][1]
    return passed
