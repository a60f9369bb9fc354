"""``--record DIR``: writes hashes and statistics of all tensors of a run, small enough to commit, for later comparison.

The directory holds record.json (qrun/schemas/record-1.0.json), one tensor a line, in graph order. It contains no time
and no path, but the versions, the CPU and the instruction set: two runs that make the same tensors on one machine
write the same bytes. Reading a record validates its content.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import file_digest
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from qrun.comparing.differences import is_integral
from qrun.comparing.saved import text
from qrun.comparing.sides import Values
from qrun.comparing.ties import before_rounding, tie_distance
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.documents.record import Item, Signed, decode, encode, optional_field, read_document
from qrun.errors import CallError
from qrun.io.files import HIDDEN, write_files
from qrun.io.files import check_folder as check_writable
from qrun.io.jsonfile import damage_error
from qrun.io.storable import digest
from qrun.ir import Array, Model, Node
from qrun.ir.compound import is_compound
from qrun.ir.compound import tensors as tensors_in
from qrun.ir.types import NUMBERS, PACKED_BITS, computable, describe, integer_range, type_name
from qrun.native.emit.isa import available

SAMPLED = 16
"""The number of elements recorded of each tensor."""
QUANTILES = (1, 10, 50, 90, 99)
"""Percentiles recorded of tensors without a histogram."""
TIE, NEARLY = 1e-5, 1e-3
"""Distances to a tie, in steps of the output (LSB), within which elements are counted."""
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio; its multiples modulo 2^64 fill the range evenly (Weyl sequence)."""

Number = int | float


@frozen
class Ties:
    """How near the values before rounding come to a rounding tie, in LSB, without elements that saturate.

    smallest: the smallest distance; None if every element saturates. tie, near: elements within 1e-5 and 1e-3 LSB.
    """

    smallest: float | None
    tie: int
    near: int


@frozen
class Histogram:
    """The number of elements with each code. counts: from the smallest code that occurs, `first`, to the largest."""

    first: Signed
    counts: tuple[int, ...]


@frozen
class RecordedModel:
    """Identifies a model: SHA-256 of its file and, by name, of its external data files."""

    sha256: str
    nodes: int = 0
    external: Mapping[str, str] | None = optional_field(None)


@frozen
class RecordedInput:
    """An input of the run. form: its type with shape."""

    name: str
    form: str
    sha256: str


@frozen
class RecordHead:
    """The head of a record, before the tensors. label: the runtime with its version;
    environment: versions, machine and other facts that results may depend on."""

    schema: str
    model: RecordedModel
    inputs: tuple[RecordedInput, ...]
    label: str
    environment: Mapping[str, Any]


@frozen
class RecordEntry:
    """One tensor in record.json.

    node, op:   index of the node that makes it, and its operator. type, shape: element type and array shape.
    sha256:     hash of the bytes in C order, little endian; types below 8 bits take one byte per element.
    low, high, mean: statistics of the finite elements; None without any. nan, inf: counts of the other elements.
    saturated:  number of elements at the lowest and at the highest code of an integer type of up to 16 bits.
    histogram:  for integer types of up to 8 bits. quantiles: for other numbers, the finite elements at QUANTILES,
                in order.
    sample:     the elements at `places`; ties: set if the operator's values before rounding are known.
    Strings, and tensors that depend on no input, have only the hash. The parts of a complex number count as elements.
    """

    name: str
    node: int
    op: str
    type: str
    shape: tuple[int, ...]
    sha256: str
    low: Number | None = optional_field(None, "min")
    high: Number | None = optional_field(None, "max")
    mean: float | None = optional_field(None)
    nan: int = optional_field(0)
    inf: int = optional_field(0)
    saturated: tuple[int, int] | None = optional_field(None)
    quantiles: tuple[Number, ...] = optional_field(())
    sample: tuple[Number, ...] = optional_field(())
    histogram: Histogram | None = optional_field(None)
    ties: Ties | None = optional_field(None)

    @classmethod
    def bare(cls, name: str, array: Array, node: Node) -> RecordEntry:
        """An entry with the tensor's type, shape and hash, without statistics of its values."""
        return cls(name, node.index, node.op, type_name(array.dtype), tuple(array.shape), digest(array))


def fill(bare: RecordEntry, array: Array, node: Node, values: Sequence[Array | None] | None) -> RecordEntry:
    """Add the statistics of `array` to a bare entry. values: the node's inputs; None if they are not known."""
    flat = _numbers(array)
    if flat is None:
        return bare
    finite = flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat
    low, high, mean = (_plain(finite.min()), _plain(finite.max()), _mean(finite)) if finite.size else (None,) * 3
    nan = int(np.count_nonzero(np.isnan(flat))) if flat.dtype.kind == "f" else 0
    narrow = flat.dtype.itemsize == 1 and flat.dtype.kind in "iub"
    return replace(
        bare,
        low=low,
        high=high,
        mean=mean,
        nan=nan,
        inf=flat.size - finite.size - nan,
        saturated=_saturation_of(array, flat),
        histogram=_histogram(flat) if narrow else None,
        quantiles=() if narrow else _quantiles(finite),
        sample=tuple(_plain(flat[at]) for at in places(flat.size)),
        ties=_ties(array, node, values),
    )


def places(size: int) -> tuple[int, ...]:
    """The flat indices of the elements to record of a tensor of `size` elements, in order."""
    if size <= SAMPLED:
        return tuple(range(size))
    return tuple(sorted({(k * _GOLDEN % 2**64) * size >> 64 for k in range(1, SAMPLED + 1)}))


def _numbers(array: Array) -> Array | None:
    """The elements as a flat array of a type that numpy computes with exactly; None for strings and objects."""
    if array.dtype.kind in "OUS":
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)
    return computable(flat)


def _plain(value: Any) -> Number:
    """The Python number with the shortest text that identifies the value in its type: 0.1 for float32 0.1."""
    if value.dtype.kind in "iub":
        return int(value)
    return float(str(value)) if value.dtype.itemsize < 8 else float(value)


def _mean(finite: Array) -> float:
    """The mean to 9 digits: numpy versions add in different orders, which changes later digits."""
    with np.errstate(all="ignore"):
        return float(f"{finite.mean(dtype=np.float64):.9g}")


def _saturation_of(array: Array, flat: Array) -> tuple[int, int] | None:
    """The numbers of elements at the least and greatest code; None for other types."""
    if not is_integral(array.dtype) or PACKED_BITS.get(NUMBERS.get(array.dtype, 0), 8 * array.dtype.itemsize) > 16:
        return None
    low, high = integer_range(array.dtype)
    return int(np.count_nonzero(flat == low)), int(np.count_nonzero(flat == high))


def _histogram(flat: Array) -> Histogram:
    """The histogram of 8-bit codes."""
    if not flat.size:
        return Histogram(Signed(0), ())
    codes = flat.astype(np.int16)
    first = int(codes.min())
    return Histogram(Signed(first), tuple(int(n) for n in np.bincount(codes - first)))


def _quantiles(finite: Array) -> tuple[Number, ...]:
    """The quantiles of numbers."""
    if not finite.size:
        return ()
    ranks = [(finite.size - 1) * q // 100 for q in QUANTILES]
    ordered = np.partition(finite, ranks)
    return tuple(_plain(ordered[rank]) for rank in ranks)


def _ties(array: Array, node: Node, values: Sequence[Array | None] | None) -> Ties | None:
    """How near the exact results are to the middle between two codes."""
    exact = exact_values(array, node, values)
    if exact is None:
        return None
    low, high = integer_range(array.dtype)
    with np.errstate(all="ignore"):
        distance = tie_distance(exact[(exact > low - 0.5 - NEARLY) & (exact < high + 0.5 + NEARLY)])
    smallest = float(f"{distance.min():.3g}") if distance.size else None
    return Ties(smallest, int(np.count_nonzero(distance <= TIE)), int(np.count_nonzero(distance <= NEARLY)))


def exact_values(array: Array, node: Node, values: Sequence[Array | None] | None) -> Array | None:
    """The values that the node rounds to make `array`, as float64 of its shape, zero point added; None if unknown."""
    if values is None or not is_integral(array.dtype):
        return None
    exact = before_rounding(node, values)
    return exact if exact is not None and exact.shape == array.shape else None


FILE = "record.json"
SCHEMA = "qrun/record/1.0"
HOW = "qrun compare MODEL -i INPUTS --record DIR writes one"

Tensors = Values | Iterable[tuple[str, Array]]
"""Tensors of a run by name, or as pairs in graph order, so that a tensor can be freed after its last reader."""


@frozen
class Recorded:
    """A written record: its directory, the number of its tensors, and its size in bytes."""

    folder: Path
    tensors: int
    nbytes: int


def record(tensors: Tensors, model: Model, feeds: Values, label: str, folder: Path) -> Recorded:
    """Write a record of a run, atomically replacing an older record in `folder`.

    feeds: the inputs of the run. label: the runtime, with its version.
    Raises CallError if `folder` holds anything but a record or cannot be written, and whatever `tensors` raises.
    """
    check_folder(folder)
    head = RecordHead(SCHEMA, recorded_model(model), recorded_inputs(feeds), label, host())
    lines = [_json(made.entry()) for made in walk(tensors, model, feeds)]
    text = f"{_json(head)[:-1]},\n" + '"tensors":[\n' + ",\n".join(lines) + "\n]}\n"
    data = text.encode()
    write_files(str(folder), [(FILE, data)])
    return Recorded(folder, len(lines), len(data))


def check_folder(folder: Path) -> None:
    """Raise CallError if a record cannot be written to `folder`: if it is a file, or a directory that holds files but
    no record."""
    check_writable(str(folder))
    try:
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
    except OSError as error:
        raise _cannot(folder, error.strerror or str(error)) from None
    held = sorted(name for name in names if not name.startswith(HIDDEN))
    if FILE in held:
        read_document(folder / FILE, ("record",), "name a new directory for the record")
    elif held:
        raise _cannot(folder, f"it contains {held[0]!r} and is not a record")


@frozen
class Made:
    """A tensor that a node made. values: the node's inputs, None for omitted ones; None as a whole if an input is
    unknown or no tensor.

    whole: the node's output that it is, or is an element of. fixed: does it depend on no input of the graph?
    """

    name: str
    array: Array
    node: Node
    values: list[Array | None] | None
    whole: str
    fixed: bool

    def entry(self) -> RecordEntry:
        """The tensor's entry in the record."""
        bare = RecordEntry.bare(self.name, self.array, self.node)
        return bare if self.fixed else fill(bare, self.array, self.node, self.values)


def walk(tensors: Tensors, model: Model, feeds: Values) -> Iterator[Made]:
    """Yield every tensor that a node of the graph makes, in the order of `tensors`; free each after its last reader.
    For a compound value, such as a sequence, yield its kind and length, then the tensors in it."""
    if isinstance(tensors, Mapping):
        held = tensors
        tensors = ((name, held[name]) for name in model.producers if name in held)
    live = {**model.constants, **feeds}
    readers = model.consumers.items()
    frees = grouped((max(node.index for node in nodes), name) for name, nodes in readers)  # by the last reader
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
    """The node's inputs, None for omitted ones; None as a whole if an input is unknown or no tensor."""
    if any(name and (name not in live or is_compound(live[name])) for name in node.inputs):
        return None
    return [live[name] if name else None for name in node.inputs]


def _from_constants(model: Model) -> frozenset[str]:
    """Names of the tensors that depend on no input: the model alone suffices to compute them."""
    found = set(model.constants) - {value.name for value in model.defaults}
    for node in model.nodes:
        if not any(node.subgraphs) and all(not name or name in found for name in node.inputs):
            found |= set(node.outputs)
    return frozenset(found)


def recorded_model(model: Model) -> RecordedModel:
    """The model's digest, and those of its external files."""
    folder = model.path.parent if model.path else Path()
    external = {name: _file_sha(folder / name) for name in sorted(model.external_files)}
    return RecordedModel(model.sha256, len(model.nodes), external or None)


def _file_sha(path: Path) -> str:
    """The SHA-256 of a file; "" if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def recorded_inputs(feeds: Values) -> tuple[RecordedInput, ...]:
    """The inputs' names, forms and digests."""
    return tuple(
        RecordedInput(name, describe(array), digest(array)) for name, array in sorted(tensors_in(feeds).items())
    )


def _json(value: Any) -> str:
    """A record as JSON."""
    return json.dumps(encode(value), separators=(",", ":"), allow_nan=False)


def _cannot(folder: Path, reason: str) -> CallError:
    """The QR008 error of a record that cannot be written."""
    facts = [("expected", "a new or empty directory, or an older record")]
    message = f"cannot write a record to {str(folder)!r}: {reason}"
    return CallError("QR008", message, where=[str(folder)], facts=facts, fixes=["--record NEW_DIR"])


def host() -> dict[str, str]:
    """The facts about this machine and its software that results may depend on."""
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
    """Yield the system's names of the processor, such as ``AMD EPYC 9B14``, best first; none if it has none."""
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
    """The best instruction set of this CPU that qrun has kernels for; "none" without one."""
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
        """The runtime that made the record, and the environment that results may depend on."""
        return {"runtime": self.head.label, **{key: text(value) for key, value in self.head.environment.items()}}


def read_record(folder: Path) -> Record:
    """Read the record in a directory. Raises CallError if there is none, or if it is damaged."""
    if not folder.is_dir() or not (folder / FILE).exists():
        got = "a directory without it" if folder.is_dir() else "a file" if folder.exists() else "nothing of that name"
        facts = [("expected", f"a directory with {FILE}"), ("got", got)]
        raise CallError("QR004", f"{str(folder)!r} is not a record", where=[str(folder)], facts=facts, fixes=[HOW])
    _, item = read_document(folder / FILE, ("record",), HOW)
    entries: dict[str, RecordEntry] = {}
    for tensor in item["tensors"]:
        made = _entry(tensor)
        if made.name in entries:
            raise damage_error(item.source, f"{tensor.place}: a new name", f"{made.name!r} again")
        entries[made.name] = made
    return Record(folder, decode(RecordHead, item), entries)


def _entry(item: Item) -> RecordEntry:
    """Decode one tensor of a record and check that its hash, sample and histogram fit its shape."""
    made = decode(RecordEntry, item)
    size, sha, histogram = prod(made.shape), made.sha256, made.histogram
    if len(sha) != HASH or set(sha) - set("0123456789abcdef"):
        raise damage_error(item.source, f"{item.place}.sha256: {HASH} hexadecimal digits", repr(sha[:70]))
    if len(made.sample) not in (0, len(places(size)), len(places(2 * size))):
        raise damage_error(item.source, f"{item.place}.sample: {len(places(size))} numbers", str(len(made.sample)))
    if histogram is not None:
        first, counts = histogram.first, histogram.counts
        if not -128 <= first <= 255 or len(counts) > 256 or sum(counts) != size:
            raise damage_error(
                item.source,
                f"{item.place}.histogram: up to 256 counts of codes, {size} in all",
                f"{sum(counts)} in {len(counts)} counts",
            )
    return made
