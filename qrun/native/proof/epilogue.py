"""Searches and proves cheap requantizations that equal the exact one; keeps found constants on disk.

Of the two float32 constants of a candidate only the product is prescribed; trying several pairs finds one that agrees
for practically every channel. The remaining channels go to float64, proven in the same way, and then to a table of the
steps, which needs no proof. Kept constants are never trusted: they are proven again when read.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare.digest import digest
from qrun.declare.frozen import frozen
from qrun.native.emit.isa import Isa, host_architecture
from qrun.native.emit.spec import BOUND_VECTORS, LIMITS, KernelSpec
from qrun.native.errors import Declined
from qrun.native.machine.call import invoke
from qrun.native.machine.compile import Kernels
from qrun.native.machine.memory import Ints
from qrun.native.proof.search import (
    INSIDE,
    INT32,
    RAISED,
    RAISED_ENDS,
    SINGLE,
    Bools,
    FloatBounds,
    Floats,
    Search,
    Singles,
    is_plain,
    multiplier,
    wanted_products,
)

_FEW = 16
_SOURCES = ("emit/spec.py", "proof/epilogue.py", "proof/search.py")


@frozen
class Target:
    """The function that a requantization computes.

    x_scale, y_scale: float32; w_scale: float32 [N] or [1].
    out, zero_point:  "u8" or "s8", and the output's zero point.
    arith:            "exact" or "ort".

    Raises Declined for anything else.
    """

    x_scale: np.float32
    w_scale: np.ndarray[Any, np.dtype[np.float32]]
    y_scale: np.float32
    out: str
    zero_point: int
    arith: str = "exact"

    def __post_init__(self) -> None:
        scales = (self.x_scale, self.w_scale, self.y_scale)
        if any(np.asarray(scale).dtype != np.float32 for scale in scales) or self.w_scale.ndim != 1:
            raise Declined("scales are not float32 numbers and a float32 vector")
        if self.out not in LIMITS or self.arith not in ("exact", "ort"):
            raise Declined(f"no native results of type {self.out} in {self.arith} arithmetic")
        low, high = LIMITS[self.out]
        if not low <= self.zero_point <= high:
            raise Declined(f"zero point {self.zero_point} is outside {low}..{high}")


@frozen
class Proven:
    """Per channel: which forms equal the exact result, and their constants.

    y32, x32: a and b are proven; f64: m is (only checked if some channel lacks x32). The table always holds.
    why: index in REASONS, 0 where y32 is proven.
    """

    y32: Bools
    x32: Bools
    f64: Bools
    a: Singles
    b: Singles
    m: Floats
    why: np.ndarray[Any, np.dtype[np.int8]]

    def part(self, channels: slice | Ints) -> Proven:
        """The proofs of some channels."""
        return Proven(*(getattr(self, field.name)[channels] for field in fields(self)))


@frozen
class Guess:
    """Pairs from an earlier search, to try before any search: per channel a and b; a = 0 where it found none."""

    a: Singles
    b: Singles


REASONS = (
    "",
    "a multiplier that is zero, negative, not finite or at least 512",
    "a step beyond 2^22",
    "a step beyond 2^24",
    "sums beyond 2^26",
    "results beyond 2^22 before they saturate",
    "exact ties",
    "no constants found",
    "no float32 multiply-add on this CPU",
)
_PLAIN, _FAR_RAISED, _FAR, _WIDE, _LARGE, _TIES, _NONE, _NO_FMA = range(1, len(REASONS))


def prove(
    target: Target,
    low: Ints,
    high: Ints,
    fma: bool = True,
    guess: Guess | None = None,
    float_bounds: FloatBounds | None = None,
) -> Proven:
    """Find and prove the constants of every channel.

    low, high [N]: bounds of the accumulator, inside int32. fma: the CPU's float32 multiply-add rounds once.
    guess: the result of an earlier search for the same channels; it saves the search, not the proof.
    float_bounds: finds bounds as numpy_bounds does, but faster.
    """
    n = len(low)
    scales = np.broadcast_to(target.w_scale, (n,))
    if n > 1 and (scales == scales[0]).all():
        first = None if guess is None else Guess(guess.a[:1], guess.b[:1])
        target, ends = replace(target, w_scale=scales[:1]), (low.min(keepdims=True), high.max(keepdims=True))
        one = prove(target, *ends, fma, first, float_bounds)
        return one.part(np.zeros(n, np.int64))
    with np.errstate(all="ignore"):
        m = multiplier(target.x_scale, scales, target.y_scale)
        proven = _unproven(m)
        rows = np.flatnonzero(is_plain(m))
        if len(rows):
            x, w, y = (
                np.abs(np.asarray(scale, np.float64)) for scale in (target.x_scale, scales[rows], target.y_scale)
            )
            want = wanted_products(LIMITS[target.out][0], target.zero_point)
            search = Search((x, w, y), want, low[rows], high[rows], fma, float_bounds)
            _prove(search, rows, guess, proven)
            if not proven.x32.all():
                proven.f64[rows] = search.serves_float64()
    return proven


def _unproven(m: Floats) -> Proven:
    """Proofs of no form, for multipliers that are not searched."""
    n, plain = len(m), is_plain(m)
    y32, x32, f64 = (np.zeros(n, np.bool_) for _ in range(3))
    why = np.where(plain, 0, _PLAIN).astype(np.int8)
    return Proven(y32, x32, f64, np.zeros(n, np.float32), np.zeros(n, np.float32), np.where(plain, m, 0.0), why)


def _prove(search: Search, channels: Ints, guess: Guess | None, proven: Proven) -> None:
    """Fill in the float32 results for `channels`, which are the channels of the search."""
    n = len(channels)
    a, b = np.zeros(n, np.float32), np.zeros(n, np.float32)
    reach = np.maximum(np.abs(search.low), np.abs(search.high))
    large = reach * search.m >= INSIDE
    rows = np.flatnonzero((search.far < SINGLE) & ~large)
    pairs = None if guess is None else (guess.a[channels], guess.b[channels])
    if pairs is not None:
        rows = rows[pairs[0][rows] > 0]
    for some, first, second in search.candidates(a, rows, pairs):
        if len(some):
            good = search.serves(some, first, second)
            a[some[good]], b[some[good]] = first[good], second[good]
    done = a > 0
    raised = np.flatnonzero(done)
    raised = raised[search.serves_raised(raised, a[raised], b[raised])]
    proven.x32[channels], proven.a[channels], proven.b[channels] = done, a, b
    proven.y32[channels[raised]] = True
    if len(raised) < n:
        proven.why[channels] = _reasons(search, done, reach, large)
        proven.why[channels[raised]] = 0


def _reasons(search: Search, done: Bools, reach: Ints, large: Bools) -> Ints:
    """Why channels lack x32, or y32 where x32 is done."""
    if not search.fma:
        raised = np.full(len(done), _NO_FMA)
    else:
        raised = np.select([search.far >= RAISED, reach >= RAISED_ENDS], [_FAR_RAISED, _WIDE], _TIES)
    tied = search.has_ties(np.arange(len(done)))
    return np.select([done, search.far >= SINGLE, large, tied], [raised, _FAR, _LARGE, _TIES], _NONE)


def int32_bounds(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Bounds of the wrapped accumulator: those given, or all of int32 where they leave it."""
    wraps = (low < INT32[0]) | (high > INT32[1])
    return np.where(wraps, INT32[0], low), np.where(wraps, INT32[1], high)


def ort_multiplier(target: Target) -> np.ndarray[Any, np.dtype[np.float32]]:
    """fl32(fl32(x_scale * w_scale) / y_scale), the multiplier of onnxruntime; one for each element of w_scale."""
    with np.errstate(all="ignore"):
        return np.asarray(np.float32(target.x_scale) * target.w_scale / np.float32(target.y_scale), np.float32)


@frozen
class Bounds:
    """Finds bounds for Search natively. Calls return float64 [2, n] for inverse [n], halves and weights [steps]."""

    kernels: Kernels
    isa: Isa

    @classmethod
    def of(cls, kernels: Kernels, isa: Isa) -> Bounds | None:
        """Bounds computed on this instruction set; None if this machine has another architecture."""
        return cls(kernels, isa) if isa.architecture == host_architecture() else None

    def __call__(self, inverse: Floats, halves: Floats, weights: Floats) -> Floats:
        spec = bounds_spec(self.isa)
        rows = spec.rows
        tiles = -(-len(inverse) // rows)
        room = np.empty((3, tiles * rows))
        room[0, : len(inverse)] = inverse
        room[0, len(inverse) :] = 1
        arrays = {"inverse*": room[0], "low*": room[1], "high*": room[2], "halves*": halves, "weights*": weights}
        words = {"split": int(np.count_nonzero(halves < 0)), "steps": len(halves), "tiles": tiles}
        kernel = self.kernels.get(spec)
        arguments = kernel.struct(words, arrays)
        invoke(kernel, arguments.ctypes.data, 0)
        return room[1:, : len(inverse)]


def bounds_spec(isa: Isa) -> KernelSpec:
    """The specification of the kernel that finds bounds."""
    return KernelSpec("bounds", isa.name, BOUND_VECTORS * max(isa.lanes // 2, 2), BOUND_VECTORS, 1, "i32", "i32", False)


def prove_forms(target: Target, low: Ints, high: Ints, kernels: Kernels, isa: Isa) -> Proven:
    """The same as `prove`, with the kernels' cache: uses constants from an earlier search, and keeps those of a new
    one."""
    if len(low) < _FEW or (target.w_scale == target.w_scale[0]).all():
        return prove(target, low, high, isa.fma)
    bounds, kept = Bounds.of(kernels, isa), kernels.cache
    if kept.refused:
        return prove(target, low, high, isa.fma, None, bounds)
    key = _key(target, low, high, isa.fma)
    guess = _decode_guess(kept.load(key, ".proof"), len(low))
    found = prove(target, low, high, isa.fma, guess, bounds)
    if guess is None or not np.array_equal(found.a, guess.a):
        kept.save(key, found.a.tobytes() + found.b.tobytes(), ".proof")
    return found


def _decode_guess(body: bytes | None, channels: int) -> Guess | None:
    """A guess from a cache entry; None if it does not fit the channels."""
    if body is None or len(body) != 8 * channels:
        return None
    values = np.frombuffer(body, np.float32)
    return Guess(values[:channels], values[channels:])


def _key(target: Target, low: Ints, high: Ints, fma: bool) -> str:
    """Identifies everything that the search depends on."""
    numbers = (target.x_scale, target.w_scale, target.y_scale, low, high)
    inputs = digest(*(np.asarray(array).tobytes() for array in numbers))
    return f"proof {_sources()} {target.out} {target.zero_point} {fma} {inputs}"


@cache
def _sources() -> str:
    """A digest of the sources on which proofs depend."""
    native = Path(__file__).parent.parent
    return digest(*(native.joinpath(*name.split("/")).read_bytes() for name in _SOURCES))
