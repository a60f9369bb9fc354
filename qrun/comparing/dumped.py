"""A dump as the second side of a comparison: the tensors that a device wrote, under the model's names, as its codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Unpack

import numpy as np

from qrun.comparing.differences import difference_mask
from qrun.comparing.mapping.fit import MappedTensor, Targets, TensorFit, fits
from qrun.comparing.mapping.layout import layouts
from qrun.comparing.mapping.names import read_names, write_names
from qrun.comparing.mapping.propose import propose
from qrun.comparing.mapping.targets import aliases, named, targets
from qrun.comparing.sides import QrunSide, Results, Side, Unit, Values
from qrun.declare.frozen import frozen
from qrun.dumps import Dump, DumpTensor
from qrun.errors import CallError, UnsupportedError, close_matches, some
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.types import shape_text
from qrun.memory import ResourceLimits
from qrun.ops import Arith

AUTO = "auto"


@frozen
class DumpSide:
    """A dump as a side. tensors: codes or floats in the model's types and layouts, by the model's names.

    units: of the side that it is compared with, since a dump does not say which nodes ran as one.
    """

    model: Model
    label: str
    tensors: Mapping[str, Array]
    units: Sequence[Unit]
    name: str = "dump"

    def run(self, feeds: Values) -> Results:
        """The tensors of the dump that nodes make; `feeds` are those that the device had."""
        return {name: array for name, array in self.tensors.items() if name in self.model.producers}

    def alone(self, unit: Unit, values: Values) -> Results:
        """Refuse: a dump cannot run."""
        raise UnsupportedError("QR013", "a dump cannot run a node")

    def inside(self, node: Node, graph: str, part: Model) -> Side:
        """Refuse: a dump does not show what is inside a node."""
        raise UnsupportedError("QR013", "a dump does not show the graph inside a node")


@frozen(eq=False)
class DumpMap:
    """How a dump was mapped. rows: one for each tensor that was paired, or with `proposed` for every one.

    path: the file of the map. proposed: did qrun propose it? floats: the dump's dequantized tensors, if none of them is
    codes of the model.
    """

    path: Path
    proposed: bool
    rows: tuple[MappedTensor, ...]
    floats: tuple[str, ...]

    @property
    def pairs(self) -> tuple[MappedTensor, ...]:
        """The rows that are decided."""
        return tuple(row for row in self.rows if row.onnx is not None)

    @property
    def open(self) -> tuple[MappedTensor, ...]:
        """The rows that are not decided."""
        return tuple(row for row in self.rows if row.onnx is None and row.candidates)

    @property
    def others(self) -> tuple[MappedTensor, ...]:
        """The rows of tensors that are none of the model's."""
        return tuple(row for row in self.rows if row.onnx is None and not row.candidates)


def dump_partner(model: Model, arith: Arith = "exact", **limits: Unpack[ResourceLimits]) -> QrunSide:
    """qrun as the side that a dump is compared with: groups fused, but with all codes. Devices also write those of
    pools and reshapes, which fused groups remove."""
    keep = frozenset(node.outputs[0] for node in model.nodes if node.op_type == "QuantizeLinear")
    return QrunSide(model, fuse=True, arith=arith, keep=keep, **limits)


def dump_inputs(dump: Dump, model: Model, given: str) -> dict[str, Array]:
    """The model's inputs that a dump holds in their types, under their names, or under those in the map `given`."""
    rows = {row.onnx: row for row in (() if given == AUTO else read_names(Path(given)))}
    inputs = {value.name: value for value in model.inputs}
    names = {onnx[0]: name for name, onnx in named(dump.tensors, {name: (name,) for name in inputs}).items()}
    found = {}
    for name, value in inputs.items():
        row = rows.get(name)
        stored = row.dump if row is not None else names.get(name)
        if stored in dump.tensors and (array := _input(dump.tensors[stored], value)) is not None:
            found[name] = array
    return found


def _input(tensor: DumpTensor, value: TensorType) -> Array | None:
    """The input in the model's layout; None if it is of another type or shape, or if several layouts fit."""
    free = [size if isinstance(size, int) else None for size in value.shape or ()]
    if value.dtype is None or value.shape is None or free.count(None) > 1:
        return None
    for view in tensor.views(value.dtype):
        rest = prod(size for size in free if size is not None)
        shape = tuple(view.size // max(rest, 1) if size is None else size for size in free)
        ways = list(layouts(view, tensor.shaped, shape))
        same = [way for way in ways if tensor.shaped and view.shape == shape and way.channels is None]
        if len(ways) == 1 or same:
            return (same or ways)[0].arrange(view, shape)
    return None


def map_dump(dump: Dump, a: Side, feeds: Values, given: str, proposal: Path) -> tuple[DumpSide, DumpMap]:
    """Map a dump to the model of side `a`, which is run on `feeds` for its values.

    given:    ``auto``, or the path of a map. proposal: where ``auto`` writes the map that it proposes.
    Raises CallError if nothing can be paired, the map does not fit, or the dump was made from other inputs.
    """
    known = targets(a.model, feeds, a.run(feeds))
    if given == AUTO:
        rows, found = propose(dump.tensors, known, aliases(a.model, known))
        write_names(proposal, rows)
    else:
        rows, found = list(read_names(Path(given))), {}
        for at, row in enumerate(rows):
            found[row.dump] = _read_row(dump, known, row, given)
            rows[at] = replace(found[row.dump].row, why=row.why)
    tensors = {fit.target.name: fit.values for fit in found.values() if fit.values is not None}
    _check_inputs(dump, tensors, feeds)
    path = proposal if given == AUTO else Path(given)
    mapped = DumpMap(path, given == AUTO, tuple(rows), _foreign_floats(dump, known, found))
    if not any(fit.target.name in a.model.producers for fit in found.values()):
        raise _no_pairs(dump, mapped)
    label = f"{dump.path} ({len(found)} of {len(dump.tensors)} tensors)"
    return DumpSide(a.model, label, tensors, tuple(a.units)), mapped


def _read_row(dump: Dump, known: Targets, row: MappedTensor, given: str) -> TensorFit:
    """The tensor of a row as the map says, with what the map leaves open found by the values. Raises CallError."""
    for column, name, names in (("dump", row.dump, dump.tensors), ("onnx", str(row.onnx), known)):
        if name not in names:
            near = close_matches(name, list(names))
            where = dump.path if column == "dump" else "the model, as qrun runs it,"
            raise CallError(
                "QR006",
                f"{given}: {where} has no tensor {name!r}",
                facts=[("expected", some(list(names)))],
                fixes=[f"did you mean {near[0]!r}?"] if near else [],
            )
    tensor, target = dump.tensors[row.dump], known[str(row.onnx)]
    expected = f"{target.values.dtype} {shape_text(target.values.shape)}"
    try:
        found = sorted(fits(tensor, target, row), key=lambda fit: fit.error)
    except ValueError as error:
        raise _unfit_row(given, row, expected, str(error)) from None
    usable = [fit for fit in found if fit.readable]
    if not usable:
        got = tensor.describe()
        if found:
            got = f"floats that are {found[0].residue:.2g} steps from the codes of scale {target.scale:.6g}"
        raise _unfit_row(given, row, expected, got)
    if len(usable) > 1 and not usable[0].beats(usable[1]):
        ways = [f"{fit.row.dtype} {fit.row.layout or ''}".strip() for fit in usable[:3]]
        raise _unfit_row(given, row, "one way to read it", " or ".join(ways), "state dtype, layout and channels")
    return usable[0]


def _unfit_row(given: str, row: MappedTensor, expected: str, got: str, fix: str = "") -> CallError:
    """The error of a row that cannot be read."""
    return CallError(
        "QR003",
        f"{given}: {row.dump!r} cannot be read as {row.onnx}",
        facts=[("expected", expected), ("got", got)],
        fixes=[fix or "correct its row, or remove it"],
    )


def _foreign_floats(dump: Dump, known: Targets, found: Mapping[str, TensorFit]) -> tuple[str, ...]:
    """Names of float tensors of which none can be read as codes of the model; none if some can."""
    if any(fit.row.dequantized for fit in found.values()):
        return ()
    floats = []
    for name, tensor in dump.tensors.items():
        if (tensor.typed and tensor.data.dtype.kind != "f") or (name in found and not found[name].error):
            continue
        read = [fit for target in known.values() if target.integral for fit in fits(tensor, target, whole=False)]
        real = [fit for fit in read if fit.row.dequantized]
        if any(fit.readable for fit in real):
            return ()
        floats += [name] if real else []
    return tuple(floats)


def _no_pairs(dump: Dump, mapped: DumpMap) -> CallError:
    """The error of a dump without any tensor of the model."""
    rows = [
        (row.dump, row.why + (f": {', '.join(row.candidates)}" if row.candidates else ""))
        for row in (*mapped.open, *mapped.others)
    ]
    message = f"no tensor of {dump.path} is certainly one of the model"
    if mapped.floats:
        message = f"{dump.path} holds floats that no quantization of the model explains"
    more = [("more", f"{len(rows) - 4} tensors")] if len(rows) > 4 else []
    return CallError(
        "QR003",
        message,
        facts=[*rows[:4], *more],
        fixes=[
            "dump the codes, or check that the device ran this model on these inputs",
            f"choose in {mapped.path}, then --map {mapped.path}",
        ],
    )


def _check_inputs(dump: Dump, tensors: Values, feeds: Values) -> None:
    """Raise CallError if the dump holds other inputs than those that qrun ran."""
    for name, array in feeds.items():
        got = tensors.get(name)
        if got is not None and (wrong := int(np.count_nonzero(difference_mask(array, got)))):
            raise CallError(
                "QR003",
                f"{dump.path} was made from other inputs: {wrong} of {array.size} elements of {name} differ",
                fixes=["leave out -i: qrun then runs the inputs of the dump, if it holds all"],
            )
