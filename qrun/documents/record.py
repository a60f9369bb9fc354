"""Records as JSON and back: each field of a frozen record is a key of its object, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from qrun.documents.item import Item, damaged

T = TypeVar("T")


Signed = NewType("Signed", int)
"""An integer that may be below 0: other integers of documents may not."""


def omitted(default: Any, key: str = "") -> Any:
    """A field that is left out of the JSON where it has this value. key: what it is called there, if not its name."""
    return field(default=default, metadata={"omitted": True, "key": key})


def unwritten(default: Any) -> Any:
    """A field that is no key: what is known beside the document while it is made."""
    return field(default=default, metadata={"unwritten": True})


def encode(value: Any) -> Any:
    """A record, or anything that holds records, as what ``json.dumps`` takes; NaN and infinities as nan, inf, -inf.

    A class with ``KEYS`` (`qrun.declare.frozen.keys`) has these keys, each an attribute, a property, or one of a part,
    such as ``node.index``, which is null where the node is None. Paths are texts.
    """
    if is_dataclass(value):
        names: Mapping[str, str] | None = getattr(type(value), "KEYS", None)
        if names is not None:
            return {key: encode(_attribute(value, name)) for key, name in names.items()}
        pairs = ((f, getattr(value, f.name)) for f in fields(value) if not f.metadata.get("unwritten"))
        return {key_of(f): encode(v) for f, v in pairs if not (f.metadata.get("omitted") and v == f.default)}
    if isinstance(value, float) and not isfinite(value):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _attribute(value: Any, name: str) -> Any:
    for part in name.split("."):
        value = None if value is None else getattr(value, part)
    return value


def key_of(field: Field[Any]) -> str:
    """What a field of a record is called in its JSON."""
    return field.metadata.get("key") or field.name


def decode(made: type[T], item: Item, finite: bool = False, **known: Any) -> T:
    """The record of a JSON object; a key that is missing or null has the field's default. known: fields by name.

    finite: numbers that are not finite count as missing, as do lists of too few or too many values.
    Raises CallError for a value of another kind than the field's type, and for a missing key without a default.
    """
    given = dict(known)
    hints = _hints(made)  # type: ignore[arg-type]
    for f in fields(made):  # type: ignore[arg-type]
        if f.name in given or f.metadata.get("unwritten"):
            continue
        inner, wanted = item.find(key_of(f)), f.default is MISSING and f.default_factory is MISSING
        if inner is not None or (wanted and NoneType not in get_args(hints[f.name])):
            value = _value(hints[f.name], item[key_of(f)] if inner is None else inner, finite)
            if value is not None:
                given[f.name] = value
        elif wanted:
            given[f.name] = None
    return made(**given)


_hints = cache(get_type_hints)


def _value(hint: Any, item: Item, finite: bool) -> Any:
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        if item.value is None:
            return None
        if int in arguments and float in arguments:
            return item.number
        hint = next(each for each in arguments if each is not NoneType)
        arguments = get_args(hint)
    if hint is float:
        return item.real if not finite or isfinite(item.real) else None
    if hint is int:
        return item.size
    if hint is Signed:
        return item.whole
    if hint is bool:
        return item.truth
    if get_origin(hint) is tuple and arguments[-1] is ...:
        return tuple(_value(arguments[0], inner, finite) for inner in item)
    if get_origin(hint) is tuple:
        items = tuple(item)
        if len(items) != len(arguments) and not finite:
            raise damaged(item.source, f"{item.place}: {len(arguments)} values", str(len(items)))
        values = tuple(_value(each, inner, finite) for each, inner in zip(arguments, items, strict=False))
        return None if None in values or len(items) != len(arguments) else values
    if get_origin(hint) is Mapping:
        return {key: _value(arguments[1], item[key], finite) for key in item.keys if item.find(key) is not None}
    if is_dataclass(hint):
        return decode(hint, item, finite)  # type: ignore[arg-type]
    return item.value if hint is Any else item.text
