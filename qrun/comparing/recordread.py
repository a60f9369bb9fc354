"""A record read back, without trusting it."""

from __future__ import annotations

from math import prod
from pathlib import Path

from qrun.comparing.record import FILE, HOW
from qrun.comparing.recordentry import RecordEntry, RecordHead, places
from qrun.comparing.settings import text
from qrun.declare.frozen import frozen
from qrun.documents.item import Item, damaged, read_document
from qrun.documents.record import decode
from qrun.errors import CallError

HASH = 64


@frozen
class Record:
    """The content of a record; entries: by the tensor's name."""

    folder: Path
    head: RecordHead
    entries: dict[str, RecordEntry]

    @property
    def made_by(self) -> dict[str, str]:
        """What ran the model, and all that results may depend on."""
        return {"runtime": self.head.label, **{key: text(value) for key, value in self.head.environment.items()}}


def read_record(folder: Path) -> Record:
    """The record in a directory. Raises CallError if there is none, or it is damaged."""
    if not folder.is_dir() or not (folder / FILE).exists():
        got = "a directory without it" if folder.is_dir() else "a file" if folder.exists() else "nothing of that name"
        facts = [("expected", f"a directory with {FILE}"), ("got", got)]
        raise CallError("QR004", f"{str(folder)!r} is no record", where=[str(folder)], facts=facts, fixes=[HOW])
    _, item = read_document(folder / FILE, ("record",), HOW)
    entries: dict[str, RecordEntry] = {}
    for tensor in item["tensors"]:
        made = _entry(tensor)
        if made.name in entries:
            raise damaged(item.source, f"{tensor.place}: a new name", f"{made.name!r} again")
        entries[made.name] = made
    return Record(folder, decode(RecordHead, item), entries)


def _entry(item: Item) -> RecordEntry:
    """A tensor of the record, with as many numbers as its shape asks for."""
    made = decode(RecordEntry, item)
    size, sha, histogram = prod(made.shape), made.sha256, made.histogram
    if len(sha) != HASH or set(sha) - set("0123456789abcdef"):
        raise damaged(item.source, f"{item.place}.sha256: {HASH} hexadecimal digits", repr(sha[:70]))
    if len(made.sample) not in (0, len(places(size)), len(places(2 * size))):
        raise damaged(item.source, f"{item.place}.sample: {len(places(size))} numbers", str(len(made.sample)))
    if histogram is not None:
        first, counts = histogram.first, histogram.counts
        if not -128 <= first <= 255 or len(counts) > 256 or sum(counts) != size:
            raise damaged(
                item.source,
                f"{item.place}.histogram: up to 256 counts of codes, {size} in all",
                f"{sum(counts)} in {len(counts)} counts",
            )
    return made
