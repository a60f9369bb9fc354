"""``--record DIR``: all tensors of a run as hashes and statistics, small enough to commit, to compare another run with.

The directory holds record.json (qrun/schemas/record-1.0.json), one tensor a line, in graph order. It has no clock and
no path in it, but the versions, the CPU and the instruction set: two runs that make the same tensors on one machine
make the same bytes. A record is read back without trusting it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from hashlib import file_digest
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from qrun.comparing.records.entry import RecordedInput, RecordedModel, RecordEntry, RecordHead, filled, places
from qrun.comparing.settings import text
from qrun.comparing.sides import Values
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.documents.record import Item, damaged, decode, encode, read_document
from qrun.errors import CallError
from qrun.io.files import HIDDEN, write_files
from qrun.io.files import check_folder as check_writable
from qrun.io.storable import digest
from qrun.ir import Array, Model, Node
from qrun.ir.compound import is_compound
from qrun.ir.compound import tensors as tensors_in
from qrun.ir.types import describe
from qrun.native.emit.isa import available

FILE = "record.json"
SCHEMA = "qrun/record/1.0"
HOW = "qrun compare MODEL -i INPUTS --record DIR writes one"

Tensors = Values | Iterable[tuple[str, Array]]
"""Tensors of a run by name; or pairs in graph order, of which only those are kept that a later node reads."""


@frozen
class Recorded:
    """What was written: the directory, how many tensors it describes, and the bytes it takes."""

    folder: Path
    tensors: int
    nbytes: int


def record(tensors: Tensors, model: Model, feeds: Values, label: str, folder: Path) -> Recorded:
    """Write a record of a run; an older record there is replaced at once.

    feeds: the inputs of the run. label: what ran it, with its version.
    Raises CallError if `folder` is something else than a record, or cannot be written; what `tensors` raises.
    """
    check_folder(folder)
    head = RecordHead(SCHEMA, recorded_model(model), recorded_inputs(feeds), label, host())
    lines = [_json(made.entry()) for made in walk(tensors, model, feeds)]
    text = f"{_json(head)[:-1]},\n" + '"tensors":[\n' + ",\n".join(lines) + "\n]}\n"
    data = text.encode()
    write_files(str(folder), [(FILE, data)])
    return Recorded(folder, len(lines), len(data))


def check_folder(folder: Path) -> None:
    """Raise CallError if a record cannot go to `folder`:
    it is a file, or a directory that holds anything but a record."""
    check_writable(str(folder))
    try:
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
    except OSError as error:
        raise _cannot(folder, error.strerror or str(error)) from None
    held = sorted(name for name in names if not name.startswith(HIDDEN))
    if FILE in held:
        read_document(folder / FILE, ("record",), "name a new directory for the record")
    elif held:
        raise _cannot(folder, f"it holds {held[0]!r} and is no record")


@frozen
class Made:
    """A tensor, the node that made it, and the node's inputs (None for omitted ones;
    all None if one is not known, or no tensor).

    whole: the node's output that it is, or is an element of. fixed: it depends on no input of the graph.
    """

    name: str
    array: Array
    node: Node
    values: list[Array | None] | None
    whole: str
    fixed: bool

    def entry(self) -> RecordEntry:
        bare = RecordEntry.bare(self.name, self.array, self.node)
        return bare if self.fixed else filled(bare, self.array, self.node, self.values)


def walk(tensors: Tensors, model: Model, feeds: Values) -> Iterator[Made]:
    """Every tensor that a node of the graph makes, in the order of `tensors`; each is let go after its last reader. Of
    a value that is no tensor, such as a sequence, its kind and length, then the tensors in it."""
    if isinstance(tensors, Mapping):
        held = tensors
        tensors = ((name, held[name]) for name in model.producers if name in held)
    live = {**model.constants, **feeds}
    readers = model.consumers.items()
    frees = grouped((max(node.index for node in nodes), name) for name, nodes in readers)  # by who reads them last
    fixed = _from_constants(model)
    done = -1
    for name, array in tensors:
        node = model.producers.get(name)
        if node is None:
            continue
        for index in range(done, node.index):
            for freed in frees.get(index, ()):
                live.pop(freed, None)
        done = max(done, node.index)
        values = _values(node, live)
        if is_compound(array):
            yield Made(name, array, node, None, name, True)
        for part, tensor in tensors_in({name: array}).items():
            while part != name and part in model.producers:
                part += "'"
            yield Made(part, tensor, node, values, name, name in fixed)
        if name in model.consumers:
            live[name] = array


def _values(node: Node, live: Values) -> list[Array | None] | None:
    """The node's inputs, None for omitted ones; None if one is not known, or no tensor."""
    if any(name and (name not in live or is_compound(live[name])) for name in node.inputs):
        return None
    return [live[name] if name else None for name in node.inputs]


def _from_constants(model: Model) -> frozenset[str]:
    """The tensors that depend on no input: whoever has the model can make them again."""
    found = set(model.constants) - {value.name for value in model.defaults}
    for node in model.nodes:
        if not any(node.subgraphs) and all(not name or name in found for name in node.inputs):
            found |= set(node.outputs)
    return frozenset(found)


def recorded_model(model: Model) -> RecordedModel:
    folder = model.path.parent if model.path else Path()
    external = {name: _file_sha(folder / name) for name in sorted(model.external_files)}
    return RecordedModel(model.sha256, len(model.nodes), external or None)


def _file_sha(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            return file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def recorded_inputs(feeds: Values) -> tuple[RecordedInput, ...]:
    return tuple(
        RecordedInput(name, describe(array), digest(array)) for name, array in sorted(tensors_in(feeds).items())
    )


def _json(value: Any) -> str:
    return json.dumps(encode(value), separators=(",", ":"), allow_nan=False)


def _cannot(folder: Path, reason: str) -> CallError:
    facts = [("expected", "a new or empty directory, or an older record")]
    message = f"cannot write a record to {str(folder)!r}: {reason}"
    return CallError("QR008", message, where=[str(folder)], facts=facts, fixes=["--record NEW_DIR"])


def host() -> dict[str, str]:
    """What results may depend on."""
    from qrun import __version__

    return {
        "qrun": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": version("onnx"),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": next(_cpu_names(), platform.machine()),
        "isa": _isa(),
        "threads": "default",
    }


def _cpu_names() -> Iterator[str]:
    """The processor as the system calls it: ``AMD EPYC 9B14``; nothing where it does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    told = dict(line.partition(":")[::2] for line in reversed(text.splitlines()))
    fields = {key.strip(): value.strip() for key, value in told.items()}
    yield from (fields[key] for key in ("model name", "Hardware", "CPU part") if fields.get(key))
    if name := platform.processor():
        yield name


def _isa() -> str:
    """The best instruction set that qrun has kernels for here."""
    try:
        return next((isa.name for isa in available()), "none")
    except ImportError:
        return "none"


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
