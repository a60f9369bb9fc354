"""A record read back, without trusting it."""

from __future__ import annotations

from math import prod
from pathlib import Path

from qrun.comparing.record import FILE, HOW
from qrun.comparing.recordentry import Histogram, Number, RecordEntry, Ties, places
from qrun.comparing.settings import text
from qrun.declare.frozen import frozen
from qrun.documents.item import Item, damaged, read_document
from qrun.errors import CallError

HASH = 64


@frozen
class Record:
    """The content of a record.

    model: SHA-256; external: of its other files. inputs: type with shape and SHA-256 by name. label: what ran the model.
    """

    folder: Path
    model: str
    external: dict[str, str]
    inputs: dict[str, tuple[str, str]]
    label: str
    environment: dict[str, str]
    entries: dict[str, RecordEntry]


def read_record(folder: Path) -> Record:
    """The record in a directory. Raises CallError if there is none, or it is damaged."""
    if not folder.is_dir() or not (folder / FILE).exists():
        got = "a directory without it" if folder.is_dir() else "a file" if folder.exists() else "nothing of that name"
        facts = [("expected", f"a directory with {FILE}"), ("got", got)]
        raise CallError("QR004", f"{str(folder)!r} is no record", where=[str(folder)], facts=facts, fixes=[HOW])
    _, item = read_document(folder / FILE, ("record",), HOW)
    model, where = item["model"], item["environment"]
    external = model.find("external")
    entries: dict[str, RecordEntry] = {}
    for tensor in item["tensors"]:
        made = _entry(tensor)
        if made.name in entries:
            raise damaged(item.source, f"{tensor.place}: a new name", f"{made.name!r} again")
        entries[made.name] = made
    return Record(
        folder,
        model["sha256"].text,
        {} if external is None else {name: external[name].text for name in external.keys},
        {value["name"].text: (value["form"].text, value["sha256"].text) for value in item["inputs"]},
        item["label"].text,
        {key: text(where[key].value) for key in where.keys},
        entries,
    )


def _entry(item: Item) -> RecordEntry:
    shape = item["shape"].shape
    size = prod(shape)
    sha = item["sha256"].text
    if len(sha) != HASH or set(sha) - set("0123456789abcdef"):
        raise damaged(item.source, f"{item.place}.sha256: {HASH} hexadecimal digits", repr(sha[:70]))
    sample = _numbers(item, "sample")
    if len(sample) not in (0, len(places(size)), len(places(2 * size))):
        raise damaged(item.source, f"{item.place}.sample: {len(places(size))} numbers", str(len(sample)))
    return RecordEntry(
        item["name"].text,
        item["node"].size,
        item["op"].text,
        item["type"].text,
        shape,
        sha,
        _number(item.find("min")),
        _number(item.find("max")),
        _real(item.find("mean")),
        _count(item.find("nan")),
        _count(item.find("inf")),
        _saturated(item.find("saturated")),
        _histogram(item.find("histogram"), size),
        _numbers(item, "quantiles"),
        sample,
        _ties(item.find("ties")),
    )


def _number(item: Item | None) -> Number | None:
    if item is None:
        return None
    real = item.real
    return item.value if isinstance(item.value, int) and abs(real) <= 2**64 else real


def _real(item: Item | None) -> float | None:
    return None if item is None else item.real


def _count(item: Item | None) -> int:
    return 0 if item is None else item.size


def _numbers(item: Item, key: str) -> tuple[Number, ...]:
    found = item.find(key)
    values = () if found is None else tuple(_number(value) for value in found)
    return tuple(value for value in values if value is not None)


def _saturated(item: Item | None) -> tuple[int, int] | None:
    if item is None:
        return None
    counts = item.shape
    if len(counts) != 2:
        raise damaged(item.source, f"{item.place}: two counts", str(len(counts)))
    return counts[0], counts[1]


def _histogram(item: Item | None, size: int) -> Histogram | None:
    if item is None:
        return None
    first, counts = item["first"].whole, item["counts"].shape
    if not -128 <= first <= 255 or len(counts) > 256 or sum(counts) != size:
        raise damaged(
            item.source,
            f"{item.place}: up to 256 counts of codes, {size} in all",
            f"{sum(counts)} in {len(counts)} counts",
        )
    return Histogram(first, counts)


def _ties(item: Item | None) -> Ties | None:
    return None if item is None else Ties(_real(item.find("smallest")), item["tie"].size, item["near"].size)
