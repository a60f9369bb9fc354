"""Listings of programs as plain values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from qrun.declare.stored import Reloadable, borrow, part_of, parts, view_of
from qrun.ir import Array, Model
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import address
from qrun.native.machine.operation import Operand
from qrun.native.plan.items import PythonStep
from qrun.native.plan.listing import Listing, Portable, View
from qrun.native.plan.stamps import Segment
from qrun.running.kept.packed import Bundle, type_named, type_of


def pack_portable(made: Portable, model: Model, bundle: Bundle) -> tuple[Any, ...]:
    """The program as plain values, with its machine code. An array that is a constant of the model is stored as its
    name; a large one packed from a constant, as the way to pack it."""
    from qrun.native.kernels.packing import packing_of

    listing, names = made.listing, {id(part): name for name, part in parts(model.constants).items()}
    there = [(name, part) for name, part in parts(model.constants).items() if isinstance(part, np.ndarray)]
    starts = sorted((address(array), name) for name, array in there if array.size)

    def array(value: Array) -> int | str | tuple[Any, ...]:
        packing = packing_of(value)
        index = packing and _place(packing.source, names, starts, model)
        if packing and index:
            return packing.kind, index, packing.arguments
        return names.get(id(part_of(value))) or bundle.array(value)

    specs = {spec: number for number, spec in enumerate(dict.fromkeys(made.specs))}
    return (
        tuple(_spec(spec) for spec in specs),
        listing.engine.kernels.blobs(tuple(specs), listing.engine.isa),
        bundle.array(np.array([specs[spec] for spec in made.specs], np.int64)),
        tuple(map(array, made.arrays)),
        tuple(map(bundle.array, (made.held, listing.structs, listing.counts, listing.parts))),
        {key: bundle.array(rows) for key, rows in listing.pointers.items()},
        tuple((_view(view), int(fill)) for view, fill in listing.borders),
        {key: _view(view) for key, view in listing.views.items()},
        {key: (tuple(map(int, o.shape)), type_named(o.dtype)) for key, o in listing.given.items()},
        {key: int(room) for key, room in listing.room.items()},
        {key: array(value) for key, value in listing.fixed.items()},
        tuple((s.first, s.end, s.item, s.frees, int(s.tiles)) for s in listing.segments),
        {item: (step.inputs, step.outputs) for item, step in listing.steps.items()},
        (
            listing.items,
            tuple(listing.wanted),
            tuple(listing.doubtful),
            int(listing.arena),
            int(listing.scratch),
            int(listing.helpers),
            dict(listing.joined),
        ),
    )


def unpack_portable(packed: Any, model: Model, arrays: Sequence[Array], engine: Engine) -> Portable:
    """The program of these values."""
    (specs, codes, numbers, pointed, tables, pointers, borders, views, given, room, fixed, segments, steps, rest) = (
        packed
    )
    kinds = [KernelSpec(*spec) for spec in specs]
    engine.kernels.adopt(kinds, codes)
    held, structs, counts, parts = (arrays[number] for number in tables)

    def array(found: int | str | tuple[Any, ...]) -> Array:
        if isinstance(found, tuple):
            from qrun.native.kernels.packing import PACKINGS

            kind, index, arguments = found
            return PACKINGS[kind](engine, _array_at(index, model), *arguments)
        return model.constants[found] if isinstance(found, str) else arrays[found]

    items, wanted, doubtful, arena, scratch, helpers, joined = rest
    listing = Listing(
        engine,
        structs,
        (),
        counts,
        parts,
        {key: arrays[rows] for key, rows in pointers.items()},
        [(_unpack_view(view), fill) for view, fill in borders],
        {key: _unpack_view(view) for key, view in views.items()},
        {key: Operand(shape, type_of(dtype)) for key, (shape, dtype) in given.items()},
        room,
        {key: array(name) for key, name in fixed.items()},
        [Segment(*segment) for segment in segments],
        {item: PythonStep(*step) for item, step in steps.items()},
        items,
        wanted,
        doubtful,
        arena,
        scratch,
        helpers,
        joined,
    )
    return Portable(listing, tuple(kinds[n] for n in arrays[numbers].tolist()), tuple(map(array, pointed)), held)


def _place(
    source: Reloadable, names: Mapping[int, str], starts: Sequence[tuple[int, str]], model: Model
) -> tuple[Any, ...] | None:
    """The place of an array without negative strides in a constant of the model; None if it lies in none. names: of the
    constants, by id; starts: the addresses of those that are in memory."""
    form = source.shape, source.strides, type_named(source.dtype)
    if source.stored is not None:
        name = names.get(id(source.stored), "")
        return (name, source.start, *form) if name else None
    start = source.start
    found, name = starts[max(bisect_right(starts, start, key=itemgetter(0)) - 1, 0)] if starts else (0, "")
    end = (
        start
        + sum((n - 1) * step for n, step in zip(source.shape, source.strides, strict=True))
        + source.dtype.itemsize
    )
    inside = found <= start and end <= found + model.constants[name].nbytes if name else False
    if not inside or not model.constants[name].flags.c_contiguous:
        return None
    return (name, start - found, *form)


def _array_at(stored: tuple[Any, ...], model: Model) -> Array:
    """A view into a constant of the model, from its stored place."""
    name, start, shape, strides, dtype = stored
    return view_of(borrow(parts(model.constants)[name]), start, shape, strides, type_of(dtype))


def _spec(spec: KernelSpec) -> tuple[Any, ...]:
    """A kernel's spec as a tuple of plain values."""
    fields = spec.kind, spec.isa, spec.rows, spec.vectors, spec.unroll, spec.form, spec.out, spec.signed, spec.prefetch
    return tuple(f if isinstance(f, (str, bool)) else int(f) for f in (*fields, spec.operands))


def _view(view: View) -> tuple[Any, ...]:
    """A view as a tuple of plain values."""
    return view.key, int(view.start), type_named(view.dtype), view.shape, view.strides


def _unpack_view(fields: tuple[Any, ...]) -> View:
    """A view from its tuple."""
    key, start, dtype, shape, strides = fields
    return View(key, start, type_of(dtype), shape, strides)
