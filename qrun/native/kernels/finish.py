"""What becomes of the int32 sums of a product whose parameters are known at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.scale import ARGUMENTS, CONSTANTS
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.results import Results
from qrun.native.machine.batch import Batch, BatchCall, Buffer
from qrun.native.machine.call import KernelCall, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Ints, address, aligned
from qrun.native.machine.operation import Operand, Order, Planned, share, size
from qrun.native.proof.epilogue import Target
from qrun.native.proof.fold import Folded
from qrun.shapes import broadcast_shapes

Array = np.ndarray[Any, Any]
Term = tuple[Array, Array]
"""int32 [rows] and [groups, N]: their products are added to the sums."""

_TYPES: dict[str, np.dtype[Any]] = {
    "u8": np.dtype(np.uint8), "s8": np.dtype(np.int8), "i32": np.dtype(np.int32), "f32": np.dtype(np.float32),
}  # fmt: skip
_ROWS = (ARGUMENTS.index("rows0*"), ARGUMENTS.index("rows1*"))
_ACC, _Y, _COLUMNS, _CONSTANTS = (ARGUMENTS.index(name) for name in ("acc*", "y*", "columns*", "constants*"))


class Finish:
    """Turns sums [rows, N] plus terms into results.

    results: a requantization whose constants are known; or `form` says what it makes: ``i32`` the sums themselves,
    ``ort`` or ``real`` float32 (emit/scale.py) with constants that come with each run.
    matrices: of the results' channels: each has N.
    """

    def __init__(self, engine: Engine, n: int, form: str, results: Results | None = None, matrices: int = 1) -> None:
        self.engine, self.n = engine, n
        lanes = engine.isa.lanes
        vectors = max(-(-n // lanes), 1)
        self.form = results.form(slice(None)) if results else form
        self.out = results.out if results else "i32" if form == "i32" else "f32"
        self.vectors = next(v for v in (4, 2, 1) if vectors % v == 0) if results else 1
        self.width, self.panels = self.vectors * lanes, vectors // self.vectors
        self.zero_point = results.zero_point if results else 0
        self.mask = (1 << (n - (vectors - 1) * lanes)) - 1
        self.kind = np.dtype(np.float64 if form == "real" else np.float32)
        self.held = self._packed(results, matrices) if results and n and matrices else None

    @property
    def dtype(self) -> np.dtype[Any]:
        return _TYPES[self.out]

    def _packed(self, results: Results, matrices: int) -> Array:
        lane = np.arange(self.panels * self.width)
        channels = np.arange(matrices)[:, None] * self.n + lane
        pick = np.where(lane < self.n, channels, -1).reshape(matrices * self.panels, self.width)
        return results.constants(self.form, pick).reshape(matrices, -1)

    def repeat(self, matrices: Ints) -> None:
        """Take the known constants of these matrices, one after another."""
        if self.held is not None:
            held = aligned((len(matrices), self.held.shape[1]), self.held.dtype)
            held[...] = self.held[matrices]
            self.held = held

    def takes(self, held: Array | None, sets: tuple[int, int]) -> bool:
        """Whether these constants, of one of so many sets, are what runs need."""
        if self.out != "f32" or held is None:
            return held is None and self.out != "f32"
        return (
            held.dtype == self.kind
            and held.shape[1:] == (self.panels, CONSTANTS[self.form] // self.kind.itemsize, self.width)
            and len(held) in sets
            and held.flags.c_contiguous
        )

    def constants(self, fields: Sequence[Array]) -> Array:
        """Constants of a form that gives float32: its fields, each [groups, N] or [1, N], as the kernel reads them:
        [groups, panels, fields, width]."""
        (groups,) = broadcast_shapes(*((len(field),) for field in fields))
        made = np.zeros((groups, self.panels, len(fields), self.width), self.kind)
        for place, field in enumerate(fields):
            self._spread(made[:, :, place], field)
        return made

    def _spread(self, to: Array, values: Array) -> None:
        """[groups, N] into panels [groups, panels, width]."""
        whole = self.n // self.width
        cut = whole * self.width
        to[:, :whole] = values[:, :cut].reshape(len(values), whole, self.width)
        if cut < self.n:
            to[:, whole, : self.n - cut] = values[:, cut:]

    def run(
        self, room: dict[Any, Any], acc: Buffer, y: Buffer, rows: int, terms: Sequence[Term], held: Array | None
    ) -> None:
        """Make y [rows, N] of acc int32 [rows, N], whose memory goes on for a vector.

        Sets of constants `held`, and of terms, come one after another, for equal parts of the rows.
        """
        held = self.held if held is None else held
        sets = (max((len(columns) for _, columns in terms), default=1), 1 if held is None else len(held))
        key = ("finish", len(terms), *sets)
        batch = room.get(key)
        if batch is None:
            batch = room[key] = self._batch(rows, len(terms), sets, 0 if held is None else held.strides[0])
        columns = aligned((sets[0], self.panels, len(terms), self.width), np.int32, 0) if terms else None
        batch.renew()
        batch.move(_ACC, acc.start)
        batch.move(_Y, y.start)
        factors = []
        for place, (factor, values) in enumerate(terms):
            assert columns is not None
            self._spread(columns[:, :, place], values)
            factors.append(np.ascontiguousarray(factor))
            batch.move(_ROWS[place], address(factors[-1]))
        if columns is not None:
            batch.move(_COLUMNS, address(columns))
        if held is not None:
            batch.move(_CONSTANTS, address(held))
        batch.execute(acc, y, columns, factors, held)

    def _batch(self, rows: int, terms: int, sets: tuple[int, int], step: int) -> Batch:
        """One call per set; words are offsets to what a run brings."""
        groups = max(sets)
        each = rows // groups
        chunk = share(each, 4 * self.n, self.engine.threads)
        itemsize = self.dtype.itemsize
        spec = KernelSpec("scale", self.engine.isa.name, terms, self.vectors, 1, self.form, self.out, False)
        kernel = self.engine.kernels.get(spec)
        known = {
            "rows": each, "panels": self.panels, "acc_row": 4 * self.n, "y_row": itemsize * self.n, "chunk": chunk,
            "tiles": -(-each // chunk), "mask": self.mask, "zero_point!": self.zero_point,
        }  # fmt: skip
        calls = []
        for group in range(groups):
            first = group * each
            moved = {
                "acc*": 4 * self.n * first, "y*": itemsize * self.n * first, "rows0*": 4 * first, "rows1*": 4 * first,
                "columns*": group * self.panels * terms * self.width * 4 if sets[0] > 1 else 0,
                "constants*": group * step if sets[1] > 1 else 0,
            }  # fmt: skip
            calls.append(BatchCall(kernel, struct(ARGUMENTS, {**known, **moved}, {}), known["tiles"]))
        return Batch(self.engine, calls)


class Factors(Planned):
    """A scale of one element to the constants of a Finish that gives float32; base: those for a scale of 1."""

    order: Order = "plain"

    def __init__(self, engine: Engine, scale: Operand, base: Array, form: str, slope: float | None = None) -> None:
        super().__init__()
        self.engine, self.form, self.slope = engine, form, slope
        self.base = aligned(base.shape, base.dtype)
        self.base[...] = base
        self.operands = (scale, Operand((base.nbytes,), np.dtype(np.uint8)))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        isa, sloped = self.engine.isa, self.slope is not None
        spec = KernelSpec("factors", isa.name, 1, 1, 1, self.form, "f32", False, operands="slope" if sloped else "")
        kernel = self.engine.kernels.get(spec)
        panels = self.base.nbytes // (CONSTANTS[self.form] * isa.lanes)
        bits = int(np.array(self.slope if sloped else 1, np.float32).view(np.int32))
        words = {"left*": 0, "y*": 0, "panels": panels, "tiles": 1, "slope!": bits}
        return (
            KernelCall(
                spec, kernel, kernel.struct(words, {"base*": self.base}), ((kernel.word("left*"), 0), (kernel.word("y*"), 1)),
                (4, self.base.nbytes), 1, keep=(self.base,),
            ),
        )  # fmt: skip


class Scaled(Planned):
    """int32 sums [..., N] and what Factors made to float32 of this shape."""

    order: Order = "plain"

    def __init__(self, finish: Finish, sums: Operand, held: Operand, y_shape: Sequence[int]) -> None:
        super().__init__()
        self.finish = finish
        self.operands = (sums, held, Operand(tuple(y_shape), np.dtype(np.float32)))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        finish, (sums, held, _) = self.finish, self.operands
        engine, count = finish.engine, size(sums.shape)
        if not count:
            return ()
        rows = count // finish.n
        spec = KernelSpec("scale", engine.isa.name, 0, finish.vectors, 1, finish.form, "f32", False)
        kernel = engine.kernels.get(spec)
        chunk = share(rows, 8 * finish.n, engine.threads)
        words = {
            **dict.fromkeys(kernel.names, 0), "rows": rows, "panels": finish.panels, "acc_row": 4 * finish.n,
            "y_row": 4 * finish.n, "chunk": chunk, "tiles": -(-rows // chunk), "mask": finish.mask,
        }  # fmt: skip
        pointers = tuple((kernel.word(name), place) for place, name in enumerate(("acc*", "constants*", "y*")))
        over = finish.panels * finish.width - finish.n
        extents = 4 * (count + over), held.shape[0], 4 * count
        return (KernelCall(spec, kernel, kernel.struct(words, {}), pointers, extents, words["tiles"]),)


def requantization(engine: Engine, target: Target, channels: int, low: int, high: int) -> Results:
    """The requantization of sums that lie within low..high, all channels alike; with its proofs, if it needs any."""
    nothing = np.zeros((channels, 1, 0), np.int16), np.zeros(channels, np.int32)
    return Results.of(
        target, Folded(*nothing, np.full(channels, low), np.full(channels, high)), engine.kernels, engine.isa
    )
