"""Reads a tensor of a dump as one of the model: its codes in the model's layout, and how far they are from qrun's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from qrun.comparing.differences import is_integral
from qrun.comparing.mapping.layout import AxisLayout, layouts
from qrun.declare.frozen import frozen
from qrun.documents.record import optional_field
from qrun.dumps import DumpTensor
from qrun.dumps.tensor import named_type
from qrun.ir import Array
from qrun.ir.types import integer_range, type_name

RESIDUE = 0.01
"""Dequantized floats are within this many steps of a code, if the scale is the model's."""
FLOAT_STEP = 0.01
"""The step in which float tensors differ, in standard deviations."""
NEAR, MOSTLY = 3.0, 0.9
"""An arithmetic or two may move codes by this many steps, in all but a tenth of the elements."""
SAMPLE = 4096
"""Elements of a large tensor that show whether it is worth while to look at all."""
FAR = 0.5
"""The relative error of elements from which no more are looked at."""
CLOSE = 0.02
"""The largest energy of the differences, relative to that of the values, of a tensor that is the same one."""


@frozen
class MappedTensor:
    """A row of names.json: which tensor of the model a dump's tensor is, and how to read it.

    dump, onnx:   the names; onnx is None if it is not decided, or not in the model.
    dtype:        of the dump's elements. layout, channels: see `qrun.comparing.mapping.layout.AxisLayout`.
    scale, zero_point: of the dump's codes. exponent: of the scale, 2**exponent, in place of it.
    dequantized:  the dump holds real numbers in place of codes.
    why:          what speaks for the pair, or against it. candidates: names to choose from, if it is not decided.
    A field that is None is found by the shape and the values.
    """

    dump: str
    onnx: str | None = None
    dtype: str | None = optional_field(None)
    layout: str | None = optional_field(None)
    channels: int | None = optional_field(None)
    scale: float | None = optional_field(None)
    zero_point: float | None = optional_field(None)
    exponent: float | None = optional_field(None)
    dequantized: bool | None = optional_field(None)
    why: str = optional_field("")
    candidates: tuple[str, ...] = optional_field(())

    @property
    def stated_scale(self) -> float | None:
        """The scale, from the exponent if that is given."""
        return self.scale if self.exponent is None else 2.0**self.exponent


@frozen(slots=False, eq=False)
class ModelTensor:
    """A tensor of the model. values: qrun's. scale, zero: of its codes; 1 and 0 if unknown, or for floats.

    root: the tensor with the same values in another order of axes, shape or type, from which it is computed.
    """

    name: str
    values: Array
    scale: float
    zero: float
    root: str

    @property
    def integral(self) -> bool:
        """Are the values codes?"""
        return is_integral(self.values.dtype)

    @cached_property
    def wide(self) -> Array:
        """The values as float64."""
        return self.values.astype(np.float64)

    @cached_property
    def step(self) -> float:
        """The unit of differences."""
        return 1.0 if self.integral else max(FLOAT_STEP * float(np.std(self.wide)), 1e-30)

    @cached_property
    def energy(self) -> float:
        """The sum of the squared distances from the mean, in steps, of the values that are finite."""
        finite = self.wide[np.isfinite(self.wide)]
        return float(np.square((finite - finite.mean()) / self.step).sum()) if finite.size else 0.0

    @cached_property
    def telling(self) -> Array:
        """A mask of the values other than the most frequent one, which many tensors have, such as the 0 of a Relu."""
        values, counts = np.unique(self.wide, return_counts=True)
        return np.asarray(self.wide != values[counts.argmax()])


@frozen(eq=False)
class TensorFit:
    """A tensor of a dump, read as one of the model.

    row: how it is read. values: the result, in the model's type and layout; None if it was not kept, or if it is not
    `readable`: the floats are no codes of the model's scale, or the codes do not fit its type.
    error: sum of squared differences in steps. near: share of elements within NEAR steps.
    residue: the farthest float from a code, in steps.
    """

    row: MappedTensor
    target: ModelTensor
    values: Array | None
    error: float
    near: float
    residue: float = 0.0
    readable: bool = True

    @property
    def relative(self) -> float:
        """The error in relation to the energy; 0 if there is no error, infinite if all values are the same."""
        energy = self.target.energy
        return 0.0 if not self.error else self.error / energy if energy else float("inf")

    @property
    def good(self) -> bool:
        """Is this the same tensor but for the rounding of another arithmetic?"""
        return self.readable and self.relative <= CLOSE and self.near >= MOSTLY

    def beats(self, other: TensorFit) -> bool:
        """Is this fit so much better that the other one is out of question?"""
        return other.error >= 4 * self.error + 16 and other.relative >= 4 * self.relative

    @property
    def evidence(self) -> float:
        """Bits of evidence in the values: how unlikely it is that another tensor is as near."""
        if self.values is None:
            return 0.0
        want = self.target.wide
        apart = np.abs(self.values.astype(np.float64) - want)[self.target.telling] / self.target.step
        spread = (np.nanmax(want) - np.nanmin(want)) / self.target.step + 1
        return float(np.log2(spread / (2 * apart + 1)).sum()) if np.isfinite(apart).all() else 0.0


def fits(
    tensor: DumpTensor, target: ModelTensor, row: MappedTensor | None = None, whole: bool = True
) -> list[TensorFit]:
    """All ways to read a tensor of a dump as one of the model, each result once.

    row:   what is known of the way; its fields that are not None are kept. whole: measure all elements, even if some of
    them show that the values are far apart. Raises ValueError if the row names a type or layout that does not fit.
    """
    row = row or MappedTensor(tensor.name)
    row = replace(row, dump=tensor.name, onnx=target.name, why="", candidates=())
    dtype = named_type(row.dtype) if row.dtype else None
    if row.dtype and dtype is None:
        raise ValueError(f"{row.dtype!r} is not a type: int8, uint8, int16, float32, ...")
    found: list[TensorFit] = []
    views = sorted(tensor.views(None if tensor.typed else dtype), key=lambda v: v.dtype != target.values.dtype)
    for view in views:
        for layout in _layouts(view, tensor.shaped, target, row):
            arranged = layout.arrange(view, target.values.shape)
            kind = replace(row, dtype=type_name(view.dtype), layout=layout.letters or None, channels=layout.channels)
            rough = [] if whole else _rough_readings(arranged, tensor, target, kind)
            for fit in rough or _readings(arranged, tensor, target, kind):
                if not any(_same(fit, other) for other in found):
                    found.append(fit)
    return found


def _layouts(view: Array, shaped: bool, target: ModelTensor, row: MappedTensor) -> list[AxisLayout]:
    """The layouts to try: the one of the row if it has one."""
    if row.layout is not None or row.channels is not None:
        return [AxisLayout(row.layout or "", row.channels)]
    return list(layouts(view, shaped, target.values.shape))


def _same(a: TensorFit, b: TensorFit) -> bool:
    """Do both read the same values?"""
    return a.values is not None and b.values is not None and np.array_equal(a.values, b.values, equal_nan=True)


def _rough_readings(data: Array, tensor: DumpTensor, target: ModelTensor, row: MappedTensor) -> list[TensorFit]:
    """The readings of a large tensor, measured at some of its elements, if these are far from qrun's values in each;
    else none."""
    size = target.values.size
    if size <= 4 * SAMPLE:
        return []
    at = np.unravel_index(np.arange(0, size, size // SAMPLE), target.values.shape)
    small = replace(target, values=target.values[at])
    rough = list(_readings(data[at], tensor, small, row))
    if any(fit.relative <= FAR for fit in rough):
        return []
    part = small.values.size / size
    return [replace(fit, target=target, values=None, error=fit.error / part) for fit in rough]


def _readings(data: Array, tensor: DumpTensor, target: ModelTensor, row: MappedTensor) -> Iterator[TensorFit]:
    """Read arranged data as the target's codes or floats, in each way that its type allows."""
    stated = row.stated_scale if row.stated_scale is not None else tensor.scale
    zero = row.zero_point if row.zero_point is not None else tensor.zero_point
    if not target.integral:
        if data.dtype.kind == "f":
            yield _fit(data.astype(np.float64), target, row)
        elif stated is not None:
            real = (data.astype(np.float64) - (zero or 0.0)) * stated
            yield _fit(real, target, replace(row, scale=stated, zero_point=_plain(zero)))
        return
    if data.dtype.kind == "f" and row.dequantized is not False:
        with np.errstate(all="ignore"):  # the bytes may be no floats
            codes = data.astype(np.float64) / target.scale + target.zero
        yield _codes(codes, data.dtype, target, replace(row, dequantized=True))
    if row.dequantized or data.dtype.kind not in "iuf" or (data.dtype.kind == "f" and not _whole(data)):
        return
    kept = replace(row, dequantized=None)
    if stated is not None:
        codes = (data.astype(np.float64) - (zero or 0.0)) * (stated / target.scale) + target.zero
        yield _codes(codes, data.dtype, target, replace(kept, scale=stated, zero_point=_plain(zero)))
        return
    for offset in _offsets(data.dtype, target.values.dtype) if zero is None else (zero - target.zero,):
        made = replace(kept, scale=target.scale, zero_point=_plain(target.zero + offset))
        yield _codes(data.astype(np.float64) - offset, data.dtype, target, made)


def _plain(zero: float | None) -> float:
    """A zero point, as an integer if it is one."""
    return int(zero or 0) if zero is None or zero == int(zero) else zero


def _offsets(dtype: np.dtype, wanted: np.dtype) -> tuple[int, ...]:
    """What to subtract from codes of a type to get those of another: nothing, or half the range if the signs differ."""
    half = 1 << (8 * wanted.itemsize - 1)
    if dtype == wanted:
        return (0,)
    if dtype.itemsize == wanted.itemsize and dtype.kind in "iu":
        return 0, half if dtype.kind == "u" else -half
    return 0, half, -half


def _whole(data: Array) -> bool:
    """Whether floats are integers."""
    return bool(np.isfinite(data).all() and (np.rint(data) == data).all())


def _codes(codes: Array, dtype: np.dtype, target: ModelTensor, row: MappedTensor) -> TensorFit:
    """The fit of real numbers in steps of the target. They are codes if they are whole, but for what the type of the
    dump cannot hold, and in the range of the target's type."""
    if not np.isfinite(codes).all():
        return TensorFit(row, target, None, float("inf"), 0.0, float("inf"), False)
    whole = np.rint(codes)
    residue = float(np.abs(codes - whole).max(initial=0.0))
    largest = float(np.abs(codes - target.zero).max(initial=0.0))
    allowed = RESIDUE + (float(np.finfo(dtype).eps) * largest if dtype.kind == "f" and dtype.itemsize < 8 else 0.0)
    low, high = integer_range(target.values.dtype)
    fits_type = not whole.size or (low <= whole.min() and whole.max() <= high)
    fit = _fit(codes if residue > allowed or not fits_type else whole, target, row)
    return fit if residue <= allowed and fits_type else replace(fit, values=None, residue=residue, readable=False)


def _fit(real: Array, target: ModelTensor, row: MappedTensor) -> TensorFit:
    """Measure values against qrun's."""
    want = target.wide
    with np.errstate(all="ignore"):
        apart = np.where((real == want) | (np.isnan(real) & np.isnan(want)), 0.0, np.abs(real - want) / target.step)
        apart = np.nan_to_num(apart, nan=np.inf)
        error = float(np.square(apart).sum())
        values = real.astype(target.values.dtype)
    return TensorFit(row, target, values, error, float(np.mean(apart <= NEAR)) if apart.size else 1.0)


def correlation(fit: TensorFit, tensor: DumpTensor) -> float:
    """The correlation of the dump's numbers with qrun's values, in the layout of the fit; 0 if one is constant."""
    dtype = named_type(fit.row.dtype or "")
    for view in tensor.views(dtype if not tensor.typed else None):
        layout = AxisLayout(fit.row.layout or "", fit.row.channels)
        a = layout.arrange(view, fit.target.values.shape).astype(np.float64).reshape(-1)
        b = fit.target.wide.reshape(-1)
        with np.errstate(all="ignore"):  # bytes without a type, read as floats, may be anything
            a, b = a - a.mean(), b - b.mean()
            found = float(a @ b / np.sqrt((a @ a) * (b @ b)))
        return found if np.isfinite(found) else 0.0
    return 0.0


Targets = Mapping[str, ModelTensor]
