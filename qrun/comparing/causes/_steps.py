"""Searches the steps by which a node may have come to its codes: which real value it forms, where the zero point is
added, how it rounds, and how it converts to the output's type. Every step but one is the specification's in a simple
cause; here several deviate at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.arithmetics.family import DERIVE, Scales
from qrun.arithmetics.primitives import ROUND
from qrun.comparing.causes._cause import TIE, Suspect
from qrun.comparing.causes._forms import Form, forms
from qrun.comparing.differences import difference_mask
from qrun.comparing.ties import real_operands
from qrun.declare.frozen import frozen, replace
from qrun.ir import Array
from qrun.ops import Context, operands, quantizers, real_operator
from qrun.ops._quantize import limits

f32, f64 = np.float32, np.float64
_INT_MIN = -(2.0**31)
_MOST = 4
"""The most deviations at once."""
_SAMPLE = 24
"""Elements of each kind, differing and equal, that a combination must reproduce before all are computed."""


@frozen
class RealValues:
    """A real value that is rounded, in steps of the output. text: what deviates, "" if nothing does.

    values: without the zero point, float64. single: is the zero point added in float32?
    """

    text: str
    values: Array
    single: bool = False


ROUNDINGS: Mapping[str, str] = {
    "even": "",
    "away": "rounds ties away from zero",
    "up": "rounds ties up",
    "zero": "rounds ties toward zero",
    "down": "rounds ties down",
    "cut": "drops the fraction",
    "floor": "rounds down",
}


_TEXTS = tuple(ROUNDINGS.values())


def _saturate(whole: Array, low: int, high: int) -> Array:
    """The nearest end of the range; NaN becomes the lowest code."""
    return np.where(np.isnan(whole), low, np.clip(whole, low, high))


def _indefinite(whole: Array) -> Array:
    """A conversion to int32 that turns what does not fit into -2^31, as x86 does."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(whole) < 2.0**31, whole, _INT_MIN)


def _low_bits(whole: Array, low: int, high: int) -> Array:
    """The low bits of an int32."""
    return (np.asarray(_indefinite(whole), f64) - low) % (high - low + 1) + low


def _opposite_end(whole: Array, before: Array, low: int, high: int) -> Array:
    """The low bits, but the opposite end for what enters the range only by the zero point."""
    entered = (whole >= low) & (whole <= high) & ~((before >= low) & (before <= high))
    return np.where(entered, np.where(before > high, low, high), _low_bits(whole, low, high))


CONVERSIONS: Sequence[tuple[str, Callable[[Array, Array, int, int], Array]]] = (
    ("", lambda w, before, low, high: _saturate(w, low, high)),
    (
        "turns values outside int32 into -2147483648",
        lambda w, before, low, high: np.clip(_indefinite(w), low, high),
    ),
    ("keeps only the low bits of the integer", lambda w, before, low, high: _low_bits(w, low, high)),
    (
        "keeps only the low bits of the integer, and returns the opposite end for values that only the zero point "
        "brings into the range",
        _opposite_end,
    ),
    (
        "keeps only the low bits of the integer, then adds the zero point with saturation",
        lambda w, before, low, high: np.clip(_low_bits(before, low, high) + (w - before), low, high),
    ),
    ("never returns the smallest code", lambda w, before, low, high: _saturate(w, low + 1, high)),
    (
        "turns NaN and infinities into the largest code",
        lambda w, before, low, high: np.where(np.isfinite(w), _saturate(w, low, high), high),
    ),
)
"""Conversions of a rounded value, which is also given without the zero point, by what deviates."""


@frozen
class Combination:
    """A combination of steps that reproduces the other side's codes. deviations: the number of steps that deviate."""

    deviations: int
    text: str
    codes: Array


def combinations(s: Suspect) -> Sequence[Combination]:
    """All combinations with the fewest deviations, two at least, that reproduce every element; () if there is none."""
    theirs = s.theirs
    if theirs is None or (theirs.shape, theirs.dtype) != (s.mine.shape, s.mine.dtype) or not theirs.size:
        return ()
    ends, at = limits(theirs.dtype), _sample(s.mine, theirs)
    due, zero = theirs.reshape(-1).astype(f64), np.broadcast_to(s.zero, theirs.shape).reshape(-1)
    hits: list[Combination] = []
    for form in forms(s):
        for real in reals(s, form):
            if real.values.shape != theirs.shape:
                continue
            texts = tuple(t for t in (form.text, real.text) if t)
            flat = replace(real, values=real.values.reshape(-1))
            sample = replace(real, values=flat.values[at])
            if any(True for _ in _reproduce(sample, zero[at], ends, due[at], len(texts))):
                found = _reproduce(flat, zero, ends, due, len(texts))
                hits += [Combination(len(each) + len(texts), _join([*texts, *each]), theirs) for each in found]
    hits = [hit for hit in hits if hit.deviations > 1]
    return [hit for hit in hits if hit.deviations == min(each.deviations for each in hits)]


def _sample(mine: Array, theirs: Array) -> Array:
    """Places of some differing elements and of some equal ones."""
    bad = difference_mask(mine, theirs).reshape(-1)
    parts = [np.flatnonzero(mask) for mask in (bad, ~bad)]
    return np.concatenate([part[np.linspace(0, part.size - 1, min(part.size, _SAMPLE)).astype(int)] for part in parts])


def _reproduce(
    real: RealValues, zero: Array, ends: tuple[int, int], due: Array, before: int
) -> Iterator[tuple[str, ...]]:
    """Yield the texts of the later steps that give the codes `due`. before: the number of earlier deviations."""
    places, values = [""], [snap(real.values)]
    if np.any(zero):
        places.append("adds the zero point before rounding")
        inside = (real.values.astype(f32) + zero.astype(f32)).astype(f64) if real.single else real.values + zero
        values.append(snap(inside))
    stack = np.stack(values)
    rounded = np.stack([ROUND[name][0](stack) for name in ROUNDINGS])
    whole, without = rounded.copy(), rounded.copy()
    whole[:, 0] += zero
    without[:, 1:] = real.values
    for text, convert in CONVERSIONS:
        equal = np.all(convert(whole, without, *ends) == due, axis=-1)
        for rounding, place in np.argwhere(equal):
            told = tuple(t for t in (places[place], _TEXTS[rounding], text) if t)
            if len(told) + before <= _MOST:
                yield told
        if not text and np.all((whole > ends[0]) & (whole <= ends[1]) & (without > ends[0]) & (without <= ends[1])):
            return


def _join(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def snap(values: Array) -> Array:
    """Move values within TIE of a rounding tie exactly onto it."""
    tie = np.floor(values) + 0.5
    return np.asarray(np.where(np.abs(values - tie) <= TIE, tie, values))


def reals(s: Suspect, form: Form) -> Iterator[RealValues]:
    """Yield the real values that a node may round: the exact one, and those of float32 steps."""
    exact = form.exact - s.zero
    yield RealValues("", exact)
    yield RealValues("rounds the value before rounding to float32", exact.astype(f32).astype(f64), True)
    known = sums_and_scales(s, form)
    if known is not None:
        acc, scales = known
        single = acc.astype(f32)
        for text, derive in DERIVE.values():
            yield RealValues(
                f"multiplies by {text} in float32", (single * derive(scales).astype(f32)).astype(f64), True
            )
        sx, sw, sy = (np.asarray(v, f32) for v in (scales.x, scales.w, scales.y))
        yield RealValues(
            "multiplies by sx * sw and divides by sy in float32", (single * (sx * sw) / sy).astype(f64), True
        )
        two = single * (sx * sw) * (f32(1) / sy)
        yield RealValues("multiplies by sx * sw and by 1 / sy in float32", two.astype(f64), True)
        return
    if s.is_op("QuantizeLinear"):
        yield from _quotients(s, form)
    elif s.is_op("DynamicQuantizeLinear"):
        yield from _dynamic(s)
    elif not form.text:
        yield from _float_steps(s)


def _quotients(s: Suspect, form: Form) -> Iterator[RealValues]:
    """Quotients of a QuantizeLinear in other ways."""
    x, scale = form.args[0], form.args[1]
    assert x is not None
    assert scale is not None
    along = s.along(scale)
    wide, narrow = x.astype(f64), along.astype(f32)
    inverse = f32(1) / narrow
    yield RealValues("multiplies by float32(1 / y_scale)", (x.astype(f32) * inverse).astype(f64), True)
    yield RealValues("multiplies by float32(1 / y_scale), with one rounding (FMA)", wide * inverse, True)
    yield RealValues("divides in float32", (x.astype(f32) / narrow).astype(f64), True)
    if scale.dtype != f32:
        kind = scale.dtype
        yield RealValues(f"divides in {kind.name}", (x.astype(kind) / along.astype(kind)).astype(f64))


def _dynamic(s: Suspect) -> Iterator[RealValues]:
    """Quotients of a DynamicQuantizeLinear in other ways, for its codes."""
    x = s.args[0]
    if x is None or x.shape != s.mine.shape or not x.size:
        return
    span = np.maximum(f32(0), x.max()) - np.minimum(f32(0), x.min())
    scale = span / f32(255)
    yield RealValues("multiplies by float32(1 / scale)", (x * (f32(1) / scale)).astype(f64), True)
    yield RealValues("multiplies by 255 and by float32(1 / range)", (x * f32(255) * (f32(1) / span)).astype(f64), True)
    yield RealValues("multiplies by 255 and divides by the range", (x * f32(255) / span).astype(f64), True)
    yield RealValues("multiplies by float32(255 / range)", (x * (f32(255) / span)).astype(f64), True)


def _float_steps(s: Suspect) -> Iterator[RealValues]:
    """The operator on dequantized float32 values, divided by the output's scale."""
    function = real_operator(s.node)
    out = next((q for q in quantizers(s.node) if q.is_output), None)
    scale = s.args[out.scale.place] if out is not None and out.scale is not None else None
    if function is None or scale is None or s.node.attributes.get("channels_last"):
        return
    attributes = {k: v for k, v in s.node.attributes.items() if k in function.attributes}
    narrow = s.along(scale).astype(f32)
    for text, given in _dequantized(s):
        try:
            made: Any = function(*given, **attributes, ctx=Context(observing=False))
        except (ValueError, IndexError, TypeError):
            return
        made = np.asarray(made[0] if isinstance(made, tuple) else made, f32)
        start = f"computes in float32{text}"
        yield RealValues(f"{start} and divides by y_scale", (made / narrow).astype(f64), True)
        yield RealValues(
            f"{start} and multiplies by float32(1 / y_scale)", (made * (f32(1) / narrow)).astype(f64), True
        )


def _dequantized(s: Suspect) -> Iterator[tuple[str, Sequence[Array]]]:
    """Yield the operands in float32, dequantized in several ways, with words that name what deviates."""
    real = real_operands(s.node, s.args)
    if real is None:
        return
    yield "", [x.astype(f32) for x in real]
    given = dict(zip(s.node.inputs, s.args, strict=False))
    text = " from x * scale - zero_point * scale"
    for more, fused in ((f"{text} with FMA", True), (text, False)):
        folded = []
        for (name, q), plain in zip(operands(s.node), real, strict=True):
            zero, scale = (
                None if q is None or slot is None else given.get(slot.tensor)
                for slot in ((None, None) if q is None else (q.zero_point, q.scale))
            )
            x = given[name]
            if zero is None or scale is None or x is None or zero.size * scale.size > 1 or not np.any(zero):
                folded.append(plain.astype(f32))
                continue
            product, shift = x.astype(f64) * scale.astype(f64), -zero.astype(f32) * scale.astype(f32)
            folded.append(((product if fused else product.astype(f32)) + shift).astype(f32))
        yield more, folded


def sums_and_scales(s: Suspect, form: Form | None = None) -> tuple[Array, Scales] | None:
    """The int64 sums of a QLinearConv, QLinearMatMul or QGemm with its scales; None for others, or if a scale is not a
    normal number."""
    exact, args = (s.exact, s.args) if form is None else (form.exact, form.args)
    if exact is None or not s.is_op("QLinearConv", "QLinearMatMul", "QGemm"):
        return None
    places = {"QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6), "QGemm": (1, 4, 7)}[s.node.op_type]
    given = [args[at] if at < len(args) else None for at in places]
    if any(v is None for v in given) or not exact.size:
        return None
    x, w, y = (np.asarray(v, f32) for v in given)
    ndim = s.mine.ndim
    if s.is_op("QLinearConv"):
        last = bool(s.node.attributes.get("channels_last")) and ndim > 2
        w = (
            w.reshape([-1 if at == (ndim - 1 if last else 1) else 1 for at in range(ndim)])
            if w.size > 1
            else w.reshape(())
        )
    elif x.ndim == 1 and x.size > 1:
        x = x[:, None]
    alpha = s.node.attributes.get("alpha", 1.0)
    if s.is_op("QGemm") and alpha != 1.0:
        return None
    x, w, y = (v.reshape(()) if v.size == 1 else v for v in (x, w, y))
    factor = x.astype(f64) * w.astype(f64) / y.astype(f64)
    acc = (exact - s.zero) / factor
    whole = np.rint(acc)
    if (
        not np.all(np.isfinite(factor) & (factor > 0))
        or not np.all(np.abs(acc - whole) < 1e-3)
        or np.abs(whole).max() >= 2.0**40
    ):
        return None
    return whole.astype(np.int64), Scales(x, w, y)
