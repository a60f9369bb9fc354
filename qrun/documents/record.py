"""Converts records to JSON and back: each field of a frozen record is a key of its object, in order.

JSON files that qrun wrote are read without trusting them: every value is fetched with the kind it must have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.io.jsonfile import damage_error, parse_json

T = TypeVar("T")
MAJOR = 1
_ODD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@frozen
class Item:
    """A value in a document; place: its path, such as ``nodes[3].op``. Accessors raise CallError for another kind."""

    value: Any
    source: str
    place: str = ""

    def __getitem__(self, key: str) -> Item:
        found = self.find(key)
        if found is None:
            raise self._bad(f"a key {key!r}", "none")
        return found

    def find(self, key: str) -> Item | None:
        """The value of a key, or None if it is missing or null."""
        inner = self._of(dict, "an object").get(key)
        return None if inner is None else Item(inner, self.source, f"{self.place}.{key}".lstrip("."))

    def __iter__(self) -> Iterator[Item]:
        items = self._of(list, "a list")
        return (Item(v, self.source, f"{self.place}[{at}]") for at, v in enumerate(items))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._of(dict, "an object"))

    @property
    def text(self) -> str:
        return self._of(str, "a string")

    @property
    def truth(self) -> bool:
        return self._of(bool, "true or false")

    @property
    def whole(self) -> int:
        return self._of(int, "an integer")

    @property
    def size(self) -> int:
        """An integer of 0 or more that an array dimension or a count can be."""
        if not 0 <= self.whole < 2**62:
            raise self._bad("an integer from 0 to 2^62", str(self.value)[:30])
        return self.whole

    @property
    def real(self) -> float:
        """A number as float; the strings nan, inf and -inf are numbers."""
        if isinstance(self.value, str) and self.value in _ODD:
            return _ODD[self.value]
        if type(self.value) not in (int, float):
            raise self._bad("a number", kind(self.value))
        try:
            return float(self.value)
        except OverflowError:
            raise self._bad("a number", f"{str(self.value)[:20]}...") from None

    @property
    def number(self) -> int | float:
        """A number; an integer of up to 64 bits stays an integer."""
        real = self.real
        return self.value if isinstance(self.value, int) and abs(real) <= 2**64 else real

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(item.size for item in self)

    def _of(self, wanted: type[T], expected: str) -> T:
        if type(self.value) is not wanted:
            raise self._bad(expected, kind(self.value))
        return self.value

    def _bad(self, expected: str, got: str) -> CallError:
        return damage_error(self.source, f"{self.place or 'the document'}: {expected}", got)


def kind(value: Any) -> str:
    """The kind of a JSON value: ``a string``."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def read_document(path: Path, kinds: tuple[str, ...], fix: str) -> tuple[str, Item]:
    """The kind of a document (the NAME of its schema ``qrun/NAME/1.x``) and its content.

    kinds: the allowed kinds; fix: how to make such a file. Raises CallError if the file cannot be read, is not JSON, is
    of another kind or a later major version, or reports a failure; MemoryLimitError if it is too large.
    """
    item = Item(parse_json(path, fix), str(path))
    expected = " or ".join(f"qrun/{name}/{MAJOR}.x" for name in kinds)
    schema = item.value.get("schema") if isinstance(item.value, dict) else None
    if not isinstance(schema, str):
        raise damage_error(str(path), f"a document with a schema, {expected}", f"{kind(item.value)} without one", fix)
    name, major = _schema(schema)
    if name not in kinds:
        raise damage_error(str(path), expected, f"schema {schema!r}"[:80], fix)
    if major != MAJOR:
        raise damage_error(
            str(path),
            f"qrun/{name}/{MAJOR}.x, which this version of qrun reads",
            f"{schema!r}"[:80],
            "use the version of qrun that wrote it, or write it again",
        )
    error = item.find("error")
    if error is not None:
        message = error.find("message")
        raise damage_error(str(path), "a result", f"a failure: {message.text if message else '?'}"[:200], fix)
    return name, item


def _schema(text: str) -> tuple[str, int]:
    """NAME and MAJOR of ``qrun/NAME/MAJOR.MINOR``; "" and 0 if it is not of this form."""
    parts = text.split("/")
    if len(parts) != 3 or parts[0] != "qrun":
        return "", 0
    major, dot, minor = parts[2].partition(".")
    valid = dot and all(p.isascii() and p.isdigit() and len(p) < 6 for p in (major, minor))
    return (parts[1], int(major)) if valid else ("", 0)


Signed = NewType("Signed", int)
"""An integer that may be negative; other integers of documents may not."""


def optional_field(default: Any, key: str = "") -> Any:
    """A field that is left out of the JSON if it has this value. key: its JSON key, if not its name."""
    return field(default=default, metadata={"omitted": True, "key": key})


def unwritten(default: Any) -> Any:
    """A field without a JSON key: known only while the document is made."""
    return field(default=default, metadata={"unwritten": True})


def encode(value: Any) -> Any:
    """Converts a record, or anything that holds records, for ``json.dumps``; NaN and infinities become nan, inf, -inf.

    A class with ``KEYS`` (`qrun.declare.frozen.keys`) has these keys: each is an attribute, a property, or an attribute
    of a part, such as ``node.index``, which is null if the node is None. Paths become texts.
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
    """The JSON key of a record's field."""
    return field.metadata.get("key") or field.name


def decode(made: type[T], item: Item, finite: bool = False, **known: Any) -> T:
    """Makes a record from a JSON object; a missing or null key gets the field's default. known: fields by name.

    finite: numbers that are not finite count as missing, as do lists of too few or too many values. Raises CallError
    for a value of another kind than the field's type, and for a missing key without a default.
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
            raise damage_error(item.source, f"{item.place}: {len(arguments)} values", str(len(items)))
        values = tuple(_value(each, inner, finite) for each, inner in zip(arguments, items, strict=False))
        return None if None in values or len(items) != len(arguments) else values
    if get_origin(hint) is Mapping:
        return {key: _value(arguments[1], item[key], finite) for key in item.keys if item.find(key) is not None}
    if is_dataclass(hint):
        return decode(hint, item, finite)  # type: ignore[arg-type]
    return item.value if hint is Any else item.text
