"""Says in a few words what a failing condition of a target's rule saw at a node: "zero point 81"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.checking.targets._conditions import OF_SCALES, Condition, Conditions, _passes, known
from qrun.checking.targets._facts import Facts
from qrun.checking.targets._view import Op

_PORTS = {"q": "", "w": "weights", "b": "bias", "y": "result", "outputs": "result", "x": "input 0"}
_WORDS: Mapping[str, str] = {
    "zero": "zero point {}",
    "scale": "scale {}",
    "axis": "axis {}",
    "axis_back": "axis {} from the end",
    "block": "blocks of {}",
    "rank": "rank {}",
    "dim": "shape {}",
    "size": "{} elements",
    "batch": "batch {}",
    "channels": "{} channels",
    "last": "last axis of {}",
    "readers": "{} readers",
    "q_readers": "{} QuantizeLinear read it",
    "next": "{} reads it",
    "prev": "{} makes it",
    "scale_type": "{} scales",
    "domain": "domain {}",
    "per": "one scale per {}",
}
_YES_NO: Mapping[str, tuple[str, str]] = {
    "quantized": ("quantized", "not quantized"),
    "const": ("constant", "not constant"),
    "stored": ("stored", "not stored"),
    "static": ("static shape", "no static shape"),
    "graph_output": ("an output of the model", "no output of the model"),
    "given": ("given", "not given"),
    "zero_given": ("with zero point", "without zero point"),
    "axis_given": ("axis given", "axis not given"),
    "scalar": ("scalar", "scale of shape [1]"),
    "scale_stored": ("stored scale", "computed scale"),
}


def seen(conditions: Conditions, op: Op, condition: Condition) -> str:
    """What made the condition fail at the operator, such as "weights: uint8"; "" if there is no short answer."""
    return _failing(conditions, op, condition, False)


def _failing(conditions: Conditions, op: Op, c: Condition, held: bool) -> str:
    """The first part of a condition that is `held` and has words."""
    if "use" in c:
        return _failing(conditions, op, conditions.define[c["use"]], held)
    if "not" in c:
        return _failing(conditions, op, c["not"], not held)
    if "all" in c or "any" in c:
        parts = [part for part in c.get("all", c.get("any")) if conditions.hold(op, part) is held]
        if "any" in c and not held:
            parts.reverse()  # alternatives end with the one that models should have
        return next(filter(None, (_failing(conditions, op, part, held) for part in parts)), "")
    if "port" in c:
        return _port(conditions, op, c, held)
    if "same" in c:
        return _several(conditions, op, c)
    if "log2" in c:
        total = conditions.log2(op, c)
        return "" if total is None or not np.all(np.isfinite(total)) else f"2^{_number(_outside(total, c))}"
    if "attr" in c and op.node is not None:
        value = op.node.attributes.get(c["attr"], c.get("default"))
        return f"no {c['attr']}" if value is None else f"{c['attr']} {_text(value)}"
    if "opset" in c:
        return f"opset {conditions.view.scope.model.opsets.get('')}"
    if "inputs" in c:
        return f"{sum(map(bool, op.inputs))} inputs"
    return ""


def _port(conditions: Conditions, op: Op, c: Condition, held: bool) -> str:
    """The fact of a tensor at a port that decided a test."""
    port = _PORTS.get(c["port"], f"input {c['port']}" if c["port"].isdigit() else "")
    for facts in conditions.at(op, c["port"]):
        for key, test in c.items():
            if key == "port" or (held and key == "quantized") or (key in OF_SCALES and not facts["quantized"]):
                continue
            if _passes(known(facts, key), test) is held:
                seen = _fact(key, facts, test, held)
                return f"{port}: {seen}" if port and seen else seen
    return f"no {port}" if "given" in c and port else ""


def _fact(key: str, facts: Facts, test: Any, held: bool) -> str:
    """A fact in words."""
    value = facts.get(key)
    if value is None:
        return ""
    if key in _YES_NO:
        return _YES_NO[key][not value]
    if isinstance(value, (list, np.ndarray)):
        value = next((part for part in value if _passes(part, test) is held), value)
    if key in ("next", "prev") and not value:
        return ""
    return _WORDS.get(key, "{}").format(_text(value))


def _several(conditions: Conditions, op: Op, c: Condition) -> str:
    """The different values of a fact that should be the same."""
    keys = ("declared", "zero", "scale") if c["same"] == "parameters" else (c["same"],)
    found = [facts for port in c["ports"] for facts in conditions.at(op, port)]
    for key in keys:
        values = list(dict.fromkeys(_text(facts[key]) for facts in found if key in facts))
        if len(values) > 1:
            return _WORDS.get(key, "{}").format(" and ".join(values[:3]))
    return ""


def _outside(total: Any, c: Condition) -> Any:
    """The sum of logarithms that is furthest outside its limits."""
    over = np.maximum(total - c.get("max", np.inf), c.get("min", -np.inf) - total)
    return total[int(np.argmax(over))]


def _text(value: Any) -> str:
    """A value in a message."""
    if isinstance(value, (np.ndarray, list, tuple)):
        parts: Sequence[Any] = list(value)
        shown = ", ".join(_text(part) for part in parts[:4])
        return shown + (", .." if len(parts) > 4 else "")
    return _number(value) if isinstance(value, (float, np.floating)) else str(value)


def _number(value: Any) -> str:
    """A number with at most four digits."""
    return f"{float(value):.4g}"
