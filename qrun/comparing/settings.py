"""In what two recorded runs differed besides their results: the model, its inputs, the versions, the machine."""

from __future__ import annotations

import json
from collections.abc import Iterable

from qrun.declare.frozen import frozen
from qrun.documents.record import Item


@frozen
class Setting:
    """Something that is not the same in both: ``backend``, before and after."""

    name: str
    a: str
    b: str


def settings(first: Item, second: Item) -> tuple[Setting, ...]:
    """What the two documents say about model, environment, options and inputs, as far as it differs."""
    return differing(_told(first), _told(second))


def differing(a: dict[str, str], b: dict[str, str]) -> tuple[Setting, ...]:
    names = dict.fromkeys([*a, *b])
    return tuple(Setting(n, a.get(n, "-"), b.get(n, "-")) for n in names if a.get(n) != b.get(n))


def lone(a: Iterable[str], b: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that only the first has, and those that only the second has."""
    first, second = dict.fromkeys(a), dict.fromkeys(b)
    return tuple(name for name in first if name not in second), tuple(name for name in second if name not in first)


def text(value: object) -> str:
    """A value for people: texts as they are, other values as JSON without its outer braces."""
    return value if isinstance(value, str) else json.dumps(value).strip("{}") or "none"


def _told(document: Item) -> dict[str, str]:
    told: dict[str, str] = {}
    for key in ("qrun", "backend", "arith", "fail_on", "tolerance"):
        found = document.find(key)
        if found is not None:
            told[key] = text(found.value)
    model = document.find("model")
    if model is not None:
        for key, name in (("path", "model"), ("sha256", "model sha256")):
            found = model.find(key)
            told[name] = found.text if found is not None else "-"
    if (where := document.find("environment")) is not None:
        told |= {key: text(where[key].value) for key in where.keys if where.find(key) is not None}
    inputs = document.find("inputs")
    for item in inputs or ():
        name = item["name"].text
        told[f"input {name}"] = f"{item['type'].text} {text(item['shape'].value)}"
        if (sha := item.find("sha256")) is not None:
            told[f"input {name} sha256"] = sha.text
    return told
