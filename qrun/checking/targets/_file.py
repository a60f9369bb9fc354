"""Reads and checks the files of targets. Their JSON Schema is qrun/schemas/target-1.0.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from qrun.checking.targets._facts import type_names
from qrun.checking.targets._hooks import HOOKS
from qrun.checking.targets._target import CONSEQUENCES, DeployTarget, TargetRule
from qrun.checking.targets._view import Preparation
from qrun.errors import CallError, suggest

FORMAT = "qrun/target/1.0"
MOST_BYTES, MOST_DEPTH, MOST_PARTS, MOST_RULES = 1 << 20, 16, 100, 1000
"""Limits of a file: its size, the nesting of a condition, the parts of a rule with the conditions that it uses, and the
number of rules."""
PORTS = ("x", "w", "b", "q", "y", "inputs", "data", "outputs")
_FACTS = """given quantized type real declared const stored rank dim batch channels last size static readers q_readers
graph_output next prev spread scale scale_type scale_stored scalar zero zero_given per axis axis_back axis_given block domain"""
FACTS = frozenset(_FACTS.split())
"""The facts that a condition on a port may test."""
TESTS = ("is", "min", "max", "not", "multiple", "pow2", "near")
_INLINE = tuple(key for key in TESTS if key != "not")
"""The tests that stand among the keys of a condition; others stand under "is"."""
_TOP: Mapping[str, type] = {
    "schema": str,
    "name": str,
    "on": str,
    "versions": list,
    "proof": str,
    "verified": bool,
    "not_judged": list,
    "options": dict,
    "prepare": dict,
    "sets": dict,
    "define": dict,
    "rules": list,
}
_NEEDED = ("schema", "name", "on", "versions", "proof", "verified", "rules")
_RULE: Mapping[str, Any] = {
    "id": str,
    "operators": list,
    "excepted": list,
    "when": dict,
    "require": dict,
    "otherwise": str,
    "cause": str,
    "why": str,
    "fix": str,
    "chosen": bool,
    "fixable": bool,
    "always": bool,
    "in_integers": bool,
    "says": str,
    "since": (str, type(None)),
    "until": (str, type(None)),
    "source": str,
    "proof": str,
}
_RULE_NEEDS = ("id", "require", "otherwise", "cause", "fix", "source", "proof")
_PREPARE: Mapping[str, type] = {
    "optimizes": bool,
    "fuses": list,
    "redundant_clips": list,
    "moving_operators": list,
    "joins_gemm": bool,
    "makes_unsigned": bool,
}
_KINDS = {str: "a text", bool: "true or false", list: "a list", dict: "an object", (str, type(None)): "a text or null"}
_FORMS: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "any": (),
    "not": (),
    "use": (),
    "same": ("ports",),
    "log2": ("min", "max", "tol"),
    "attr": ("default", "present", *_INLINE),
    "option": _INLINE,
    "opset": (),
    "domain": (),
    "inputs": (),
    "outputs": (),
    "hook": (),
    "port": tuple(FACTS),
}
"""The key that names each kind of condition, and the other keys that it takes."""


def read_target(data: bytes, name: str, where: str, version: str = "") -> DeployTarget:
    """Make a target from the bytes of its file.

    name: its id. where: the file, for messages. version: "" for the newest.

    Raises CallError QR017 if the file is not as the schema says.
    """
    if len(data) > MOST_BYTES:
        raise _wrong(where, f"{len(data)} bytes", f"at most {MOST_BYTES}", "the file is too large")
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _wrong(where, str(error)[:100], "a JSON document", "the file cannot be read") from None
    checked = _Check(where).target(document)
    versions = checked["versions"]
    if version and version not in versions:
        raise CallError("QR005", f"{name} has no version {version}", facts=[("known", ", ".join(versions))])
    version = version or versions[-1]
    rules = tuple(_rule(r, checked.get("sets", {})) for r in checked["rules"] if _applies(r, version))
    return DeployTarget(
        name,
        checked["name"],
        version,
        checked["on"],
        rules,
        checked.get("define", {}),
        checked.get("options", {}),
        Preparation(**checked.get("prepare", {})),
        checked["proof"],
        checked["verified"],
        tuple(checked.get("not_judged", ())),
        tuple(versions),
    )


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


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


def _wrong(where: str, got: str, expected: str, message: str, near: str = "", place: str = "") -> CallError:
    """The error about a place of a file."""
    facts = [("expected", expected), ("got", got)]
    fixes = [f"write {near}"] if near else ["qrun/schemas/target-1.0.json describes such files"]
    return CallError("QR017", message, where=[where, *([place] if place else [])], facts=facts, fixes=fixes)


class _Check:
    """Checks a document. Places are like `rules[3].require.all[0]`."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.define: Mapping[str, Any] = {}
        self.options: Mapping[str, Any] = {}
        self.parts: dict[str, int] = {}

    def target(self, document: Any) -> Mapping[str, Any]:
        """The document itself, if all of it is right."""
        self.keys(document, "", _TOP, _NEEDED)
        if document["schema"] != FORMAT:
            self.fail("schema", "the file has another format", FORMAT, document["schema"])
        self.versions(document["versions"])
        self.texts(document.get("not_judged", []), "not_judged")
        self.prepare(document.get("prepare", {}))
        sets = document.get("sets", {})
        for name, operators in sets.items():
            self.texts(operators, f"sets.{name}")
        self.options = document.get("options", {})
        for name, value in self.options.items():
            self.scalar(value, f"options.{name}")
        self.define = document.get("define", {})
        for name, condition in self.define.items():
            self.condition(condition, f"define.{name}", (name,), 0)
        if len(document["rules"]) > MOST_RULES:
            self.fail("rules", "there are too many rules", f"at most {MOST_RULES}", str(len(document["rules"])))
        ids: set[str] = set()
        for at, rule in enumerate(document["rules"]):
            self.rule(rule, f"rules[{at}]", sets, ids)
        for name in document["versions"]:
            self.version(name, "versions")
        return document  # type: ignore[no-any-return]

    def rule(self, rule: Any, place: str, sets: Mapping[str, Any], ids: set[str]) -> None:
        """Check a rule."""
        self.keys(rule, place, _RULE, _RULE_NEEDS)
        if rule["id"] in ids:
            self.fail(f"{place}.id", "two rules have one id", "an id of its own", rule["id"])
        ids.add(rule["id"])
        if ("operators" in rule) == ("excepted" in rule):
            self.fail(place, "a rule names its operators in one way", "operators or excepted", "both or none")
        key = "operators" if "operators" in rule else "excepted"
        self.texts(rule[key], f"{place}.{key}")
        for name in rule[key]:
            if name.startswith("@"):
                self.known(name[1:], sets, f"{place}.{key}", "no such set of operators")
        self.known(rule["otherwise"], CONSEQUENCES, f"{place}.otherwise", "no such consequence")
        for key in ("since", "until"):
            if rule.get(key) is not None:
                self.version(rule[key], f"{place}.{key}")
        parts = sum(self.condition(rule[key], f"{place}.{key}", (), 0) for key in ("when", "require") if key in rule)
        if parts > MOST_PARTS:
            self.fail(place, "the condition has too many parts", f"at most {MOST_PARTS}", str(parts))

    def condition(self, c: Any, place: str, inside: tuple[str, ...], depth: int) -> int:
        """Check a condition; return the number of its parts. inside: the names that are being defined."""
        if not isinstance(c, dict):
            self.fail(place, "this is no condition", "an object", _kind(c))
        if depth > MOST_DEPTH:
            self.fail(place, "conditions are nested too deeply", f"at most {MOST_DEPTH} levels", "more")
        kind = next((key for key in ("port", *_FORMS) if key in c), "")
        if not kind:
            near = next(filter(None, (suggest(str(key), _FORMS) for key in c)), "")
            self.fail(place, "no such condition", ", ".join(_FORMS), ", ".join(map(str, c)) or "nothing", near)
        for key in c:
            if key != kind:
                self.known(key, _FORMS[kind], place, f'"{kind}" takes no such key')
        if kind in ("all", "any"):
            self.list(c[kind], f"{place}.{kind}")
            return 1 + sum(
                self.condition(part, f"{place}.{kind}[{at}]", inside, depth + 1) for at, part in enumerate(c[kind])
            )
        if kind == "not":
            return 1 + self.condition(c["not"], f"{place}.not", inside, depth + 1)
        if kind == "use":
            return 1 + self.used(c["use"], place, inside, depth)
        self.leaf(kind, c, place)
        return 1

    def used(self, name: Any, place: str, inside: tuple[str, ...], depth: int) -> int:
        """Check the name of a condition; return the number of parts of that condition."""
        self.known(name, self.define, f"{place}.use", "no condition has this name under define")
        if name in inside:
            self.fail(place, "a condition uses itself", "no circle", " -> ".join((*inside, name)))
        if name not in self.parts:
            self.parts[name] = self.condition(self.define[name], f"define.{name}", (*inside, name), depth + 1)
        return self.parts[name]

    def leaf(self, kind: str, c: Mapping[str, Any], place: str) -> None:
        """Check a condition that has no others in it."""
        if kind in ("port", "hook", "option", "attr", "same"):
            self.text(c[kind], f"{place}.{kind}")
        if kind == "port":
            self.port(c["port"], f"{place}.port")
            for key in c.keys() - {"port"}:
                self.test(c[key], f"{place}.{key}", types=key in ("type", "real", "declared", "scale_type"))
        elif kind == "hook":
            self.known(c["hook"], HOOKS, f"{place}.hook", "no such hook")
        elif kind == "option":
            self.known(c["option"], self.options, f"{place}.option", "no such option under options")
            self.tests(c, place, "option")
        elif kind == "attr":
            if "present" not in c:
                self.tests(c, place, "attr")
        elif kind == "same":
            self.known(c["same"], (*FACTS, "parameters"), f"{place}.same", "no such fact")
            self.texts(c.get("ports"), f"{place}.ports")
            for port in c["ports"]:
                self.port(port, f"{place}.ports")
        elif kind == "log2":
            self.object(c["log2"], f"{place}.log2")
            for port, factor in c["log2"].items():
                self.port(port, f"{place}.log2")
                self.number(factor, f"{place}.log2.{port}")
            for key in c.keys() - {"log2"}:
                self.number(c[key], f"{place}.{key}")
        else:
            self.test(c[kind], f"{place}.{kind}")

    def tests(self, c: Mapping[str, Any], place: str, kind: str) -> None:
        """Check a test that stands among the keys of its condition."""
        test = {key: c[key] for key in _INLINE if key in c}
        if not test:
            self.fail(place, f'"{kind}" needs a test', ", ".join(_INLINE), "none")
        if "is" in test:
            self.test(test.pop("is"), f"{place}.is")
        if test:
            self.test(test, place)

    def test(self, test: Any, place: str, types: bool = False) -> None:
        """Check a test: a value, a list of values, or an object with the keys of TESTS but "is"."""
        values = test if isinstance(test, list) else [test]
        if isinstance(test, dict):
            for key, value in test.items():
                self.known(key, ("not",) if types else TESTS[1:], place, "no such test")
                self.bound(key, value, f"{place}.{key}")
            values = test.get("not", [])
        for value in values:
            self.scalar(value, place)
            if types:
                self.known(value, type_names(), place, "no such element type")

    def bound(self, key: str, value: Any, place: str) -> None:
        """Check one part of a test."""
        if key == "not":
            self.list(value, place)
        elif key == "pow2":
            self.kind(value, bool, place)
        elif key == "near":
            self.list(value, place)
            for part in value:
                self.number(part, place)
            if len(value) != 2:
                self.fail(place, "this needs a value and a tolerance", "two numbers", str(len(value)))
        else:
            self.number(value, place)
            if key == "multiple" and value <= 0:
                self.fail(place, "nothing is a multiple of this", "a positive number", str(value))

    def port(self, name: Any, place: str) -> None:
        """Check a port: a name, or the number of an input."""
        if not (isinstance(name, str) and name.isdecimal() and name.isascii() and len(name) <= 4):
            self.known(name, PORTS, place, "no such port")

    def keys(self, value: Any, place: str, allowed: Mapping[str, Any], needed: Sequence[str]) -> None:
        """Check the keys of an object and the kinds of their values."""
        self.object(value, place)
        for key in value:
            self.known(key, allowed, place, "no such key")
            self.kind(value[key], allowed[key], f"{place}.{key}" if place else key)
        for key in needed:
            if key not in value:
                self.fail(place, f"{key} is missing", f'"{key}"', ", ".join(value) or "nothing")

    def versions(self, names: Sequence[Any]) -> None:
        """Check the versions of the target: at least one."""
        self.texts(names, "versions")
        if not names:
            self.fail("versions", "no version", "at least one", "none")

    def version(self, name: str, place: str) -> None:
        """Check a version: numbers and dots."""
        if not all(part.isdecimal() and part.isascii() and len(part) < 9 for part in name.split(".")):
            self.fail(place, "a version is numbers with dots between", '"1.32.0"', name)

    def prepare(self, given: Mapping[str, Any]) -> None:
        """Check how the target changes graphs."""
        self.keys(given, "prepare", _PREPARE, ())
        for key, value in given.items():
            if isinstance(value, list):
                self.texts(value, f"prepare.{key}")

    def known(self, word: Any, among: Any, place: str, message: str) -> None:
        """Check that a word is one of those that are allowed."""
        if not isinstance(word, str) or word not in among:
            shown = ", ".join(list(among)[:12]) or "none"
            self.fail(place, message, shown, str(word)[:60], suggest(str(word), among))

    def texts(self, value: Any, place: str) -> None:
        """Check a list of texts."""
        self.list(value, place)
        for part in value:
            self.text(part, place)

    def scalar(self, value: Any, place: str) -> None:
        """Check a text, a number or a truth value."""
        if not isinstance(value, (str, int, float)) or (not isinstance(value, str) and not abs(value) <= 1e30):
            self.fail(place, "a value of the wrong kind", "a text, a number, true or false", _kind(value))

    def number(self, value: Any, place: str) -> None:
        """Check a number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e30:
            self.fail(place, "a value of the wrong kind", "a number", _kind(value))

    def text(self, value: Any, place: str) -> None:
        """Check a text."""
        self.kind(value, str, place)

    def list(self, value: Any, place: str) -> None:
        """Check a list."""
        self.kind(value, list, place)

    def object(self, value: Any, place: str) -> None:
        """Check an object."""
        self.kind(value, dict, place)

    def kind(self, value: Any, kind: Any, place: str) -> None:
        """Check the kind of a value."""
        if not isinstance(value, kind):
            self.fail(place, "a value of the wrong kind", _KINDS[kind], _kind(value))

    def fail(self, place: str, message: str, expected: str, got: str, near: str = "") -> None:
        """Raise the error of a place."""
        raise _wrong(self.where, got, expected, message, near, place)


def _kind(value: Any) -> str:
    """The kind of a JSON value."""
    kinds: Mapping[Any, str] = {**_KINDS, int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "something else")


def read_file(path: Path) -> bytes:
    """The bytes of a file, and one more than is allowed if it is longer. Raises CallError QR004."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CallError("QR004", f"cannot read {path}", facts=[("reason", error.strerror or str(error))]) from None
