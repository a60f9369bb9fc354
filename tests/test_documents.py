"""The records of documents: their fields are the keys of the schemas, and what is written is read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from qrun.checking.rules import Finding
from qrun.comparing.record import RecordEntry
from qrun.declare.frozen import frozen
from qrun.documents.answers import (
    FedInput,
    GroupTimes,
    InsideTimes,
    ModelFile,
    OperatorTimes,
    PairedTimes,
    ProfileNode,
    RunNode,
    RunOutput,
    Samples,
    TensorCodes,
    TensorForm,
)
from qrun.documents.record import Item, Signed, decode, encode, key_of, optional_field, unwritten
from qrun.errors import CallError

TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", tuple: "array", Mapping: "object"}


def named(schema: str, *path: str) -> dict[str, Any]:
    found = json.loads(files("qrun").joinpath(f"schemas/{schema}-1.0.json").read_text())["$defs"]
    for word in path:
        found = found[word]
    return dict(found)


RECORDS = [
    (ProfileNode, named("profile", "node")),
    (Samples, named("profile", "samples")),
    (InsideTimes, named("profile", "report", "properties", "inside", "items")),
    (OperatorTimes, named("profile", "report", "properties", "operators", "items")),
    (GroupTimes, named("profile", "against", "properties", "groups", "items")),
    (PairedTimes, named("profile", "against", "properties", "operators", "items")),
    (TensorForm, named("profile", "node", "properties", "outputs", "items")),
    (FedInput, named("profile", "report", "properties", "inputs", "items")),
    (ModelFile, named("profile", "report", "properties", "model")),
    (RunOutput, named("run", "output")),
    (RunNode, named("run", "node")),
    (TensorCodes, named("report", "tensor")),
    (Finding, named("check", "finding")),
    (RecordEntry, named("record", "tensor")),
]


def kinds(hint: Any) -> set[str]:
    """The JSON types of a field."""
    if NoneType in get_args(hint):
        return {"null", *(kind for each in get_args(hint) if each is not NoneType for kind in kinds(each))}
    return {TYPES.get(get_origin(hint) or hint, "string")}


@pytest.mark.parametrize(("record", "schema"), RECORDS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_record_is_its_schema(record: type, schema: dict[str, Any]) -> None:
    hints, properties = get_type_hints(record), schema["properties"]
    written = [f for f in fields(record) if not f.metadata.get("unwritten")]
    hints = {key_of(f): hints[f.name] for f in fields(record)}
    keys = list(getattr(record, "KEYS", None) or map(key_of, written))
    always = [key_of(f) for f in written if key_of(f) in keys and not f.metadata.get("omitted")]
    assert set(always) == set(schema["required"]) - {"fingerprint"}
    assert {name for name in keys if name in properties or name in always} >= set(properties) - {"fingerprint"}
    for name in properties.keys() & set(keys):
        told = properties[name].get("type")
        if told is not None and hints[name] is not Any:
            assert {told} if isinstance(told, str) else set(told) <= kinds(hints[name]), name


@frozen
class Inner:
    x: float
    y: tuple[int, ...] = ()


@frozen
class Outer:
    name: str
    inner: Inner | None = None
    pairs: tuple[tuple[str, float], ...] = ()
    sizes: Mapping[str, int] | None = None
    group: tuple[int, ...] = optional_field(())
    low: int | float | None = optional_field(None, "min")
    first: Signed | None = optional_field(None)
    aside: int = unwritten(0)


def test_what_is_written_is_read() -> None:
    made = Outer("a", Inner(float("inf"), (1, 2)), (("b", 0.5),), {"N": 3}, aside=7)
    document = json.loads(json.dumps(encode(made)))
    assert document == {"name": "a", "inner": {"x": "inf", "y": [1, 2]}, "pairs": [["b", 0.5]], "sizes": {"N": 3}}
    read = decode(Outer, Item(document, "f"))
    assert read == Outer("a", Inner(float("inf"), (1, 2)), (("b", 0.5),), {"N": 3})
    assert decode(Outer, Item({"name": "a", "inner": None, "group": [4]}, "f")) == Outer("a", group=(4,))


def test_a_key_may_be_another_than_the_field() -> None:
    for low in (2**53 + 1, 0.5):
        made = Outer("a", low=low, first=Signed(-3))
        document = json.loads(json.dumps(encode(made)))
        assert (document["min"], document["first"], "low" in document) == (low, -3, False)
        read = decode(Outer, Item(document, "f"))
        assert read == made
        assert type(read.low) is type(low)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({}, "a key 'name'"),
        ({"name": 3}, "name: a string"),
        ({"name": "a", "inner": {"x": "much"}}, "inner.x: a number"),
        ({"name": "a", "inner": {"x": 1, "y": [0, -1]}}, "inner.y[1]: an integer from 0"),
        ({"name": "a", "pairs": [["b", []]]}, "pairs[0][1]: a number"),
        ({"name": "a", "sizes": []}, "sizes: an object"),
        ({"name": "a", "pairs": [["b"]]}, "pairs[0]: 2 values"),
        ({"name": "a", "pairs": [["b", 1, 2]]}, "pairs[0]: 2 values"),
        ({"name": "a", "first": 0.5}, "first: an integer"),
        ({"name": "a", "min": "low"}, "min: a number"),
        ([], "the document: an object"),
    ],
)
def test_a_value_of_another_kind_is_named(value: Any, place: str) -> None:
    with pytest.raises(CallError) as caught:
        decode(Outer, Item(value, "f"))
    assert place in str(caught.value)


def test_numbers_that_are_not_finite_can_count_as_missing() -> None:
    document = {"name": "a", "pairs": [["b", "nan"]], "inner": {"x": 1}}
    assert decode(Outer, Item(document, "f"), True).pairs == (None,)
