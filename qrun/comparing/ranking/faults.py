"""Finds and proves faults of a quantized group. A fault of a constant (a factor, an order, an axis, a type of codes) is
proved if undoing it alone gives the first model's constant, up to rounding. A fault of operators (a missing, different
or extra one, other attributes, exchanged inputs) is proved if applying it alone to the first model's operators gives
what the second model computes with the first's constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qrun.comparing.differences import sqnr
from qrun.comparing.matching.graph import Reals
from qrun.comparing.ranking.constants import Constants, Stored, UnlikeConstant, pass_through, stored_codes
from qrun.comparing.ranking.groups import NO_PATHS, Operation, RoundingGroup, operate, simulate
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen
from qrun.errors import QrunError, percent
from qrun.ir import Array, Node
from qrun.ir.types import integer_range, type_name

FINE = 30.0
"""dB above which a constant has no fault."""
_GAIN, _LEAST, _RIVALS = 8.0, 15.0, 6.0
"""In dB: what an explanation of a constant's noise must gain, the SNR it must reach, and how far it may be below the
best explanation."""
_EQUAL = 60.0
"""dB above which explanations are equally good."""
_STEPS, _ROUNDED = 2.0, 0.95
"""Rounding that considers other weights moves a weight by up to _STEPS steps; the share _ROUNDED of the weights must
be that near."""
_MANY = 4096
"""The number of channels above which no permutation is tried."""
_ALIKE = 0.9


@frozen(eq=False)
class Correction:
    """A new value for a constant of the second model. change: its description, such as ``0.0339 -> 0.0388``."""

    name: str
    array: Array
    change: str


@frozen(eq=False)
class Fault:
    """A proved fault of a group: without it, the group's noise is gone.

    kind: its code; text: its description; corrections: new constants, if these alone correct it.
    follows: scales that cause it if they are wrong; factor: how many times too large such a scale is then.
    """

    kind: str
    text: str
    corrections: tuple[Correction, ...] = ()
    follows: tuple[str, ...] = ()
    factor: float = 1.0


@frozen(eq=False)
class _Guess:
    """A fault that a constant may have. array: its numbers without the fault; None if they cannot be computed."""

    fault: Fault
    array: Array | None


@frozen
class Verdict:
    """The verdict on a constant: its SNR in dB, its fault if any, and the type to which it is rounded."""

    constant: UnlikeConstant
    sqnr: float
    fault: Fault | None
    rounded: str = ""

    @property
    def what(self) -> str:
        """The constant's role, or its name."""
        return self.constant.role if self.constant.role != "constant" else self.constant.name


def judge(b: Reals, constant: UnlikeConstant, constants: Constants, label: str) -> Verdict:
    """Find the fault of a constant, if it has one. label: the first model's label."""
    own = sqnr(constant.mine, constant.wanted)
    if own >= FINE:
        return Verdict(constant, own, None)
    stored = stored_codes(b, constant, constants)
    found = []
    for guess in _guesses(b, constant, constants, stored, label):
        if guess.array is not None and guess.array.size == constant.wanted.size:
            left = sqnr(guess.array, constant.wanted)
            if left >= max(_LEAST, own + _GAIN):
                found.append((left, guess.fault))
    best = max((left for left, _ in found), default=0.0)
    kind = next((fault.kind for left, fault in found if left >= min(best, _EQUAL) - _RIVALS), None)
    if kind is not None:
        _, simplest = max(((left, fault) for left, fault in found if fault.kind == kind), key=lambda each: each[0])
        return Verdict(constant, own, simplest)
    return _judge_unexplained(constant, stored, own, label)


def _judge_unexplained(constant: UnlikeConstant, stored: Stored | None, own: float, label: str) -> Verdict:
    """The verdict if no guess explains the difference: no fault if nearly all values (_ROUNDED) are within _STEPS steps
    of the first model's, a clipped constant if the others are at the ends of the type, else another constant. own: the
    SNR in dB; label: of the first model."""
    what = constant.role if constant.role != "constant" else constant.name
    steps = stored.steps() if stored is not None else None
    if stored is not None and steps is not None and steps.size == constant.mine.size:
        codes = stored.parameters()[0]
        near = np.abs(constant.mine - constant.wanted).reshape(-1) <= _STEPS * steps.reshape(-1) * (1 + 1e-6)
        if near.mean() >= _ROUNDED:
            return Verdict(constant, own, None, type_name(codes.dtype))
        low, high = integer_range(codes.dtype)
        ends = stored.to_constant_form(np.isin(codes.astype(np.int64), (low, low + 1, high)))
        if ends is not None and (near | (ends.reshape(-1) != 0)).mean() >= _ROUNDED:
            text = f"{what} clip: {percent(1 - near.mean())} saturate in {type_name(codes.dtype)}; {stored.names[1]} is too small"
            return Verdict(constant, own, Fault("clipped-constant", text))
    verb = "differ" if what == "weights" else "differs"
    text = f"the {what} {verb} from {label}'s: {own:.1f} dB"
    return Verdict(constant, own, Fault(f"other-{constant.role}", text))


def _guesses(
    b: Reals, constant: UnlikeConstant, constants: Constants, stored: Stored | None, label: str
) -> Iterator[_Guess]:
    """Yield the faults to try, the simplest first."""
    mine, wanted = constant.mine, constant.wanted
    if not mine.any():
        yield _Guess(Fault(f"lost-{constant.role}", f"{_role(constant)} of {label} is missing here"), wanted)
        return
    if not wanted.any():
        yield _Guess(Fault(f"other-{constant.role}", f"{_role(constant)} is not in {label}"), wanted)
        return
    own, first = constants.products.get(constant.place, (None, None))
    if constant.role == "weights" and own is not None and first is not None and own.alpha != first.alpha:
        text = f"alpha of its Gemm is {own.alpha:g} here, {first.alpha:g} in {label}"
        yield _Guess(Fault("other-attribute", text), mine * (first.alpha / own.alpha))
    for other in constants.found:
        if other.place == constant.place and other.at != constant.at and constant.role == "constant":
            names = f"{constant.name} and {other.name} are swapped here"
            fits = other.wanted.reshape(-1) if other.wanted.size == mine.size else None
            if fits is not None and sqnr(mine, fits) >= FINE:
                both = tuple(_correction_from(c, label) for c in (constant, other))
                yield _Guess(Fault("exchanged-constants", names, both), wanted)
    if stored is not None:
        yield from _of_codes(b, constant, stored)
    yield _factor(constant, stored, label)
    if constant.role == "weights":
        yield from _orders(constant, stored)
        if stored is not None:
            yield _per_channel(constant, stored)
    elif mine.ndim == 1 or constant.role == "bias":
        yield from _order_of_numbers(constant)


def _role(constant: UnlikeConstant) -> str:
    """The constant's role in words."""
    return {"weights": "the weights", "bias": "the bias"}.get(constant.role, constant.name)


def _correction_from(constant: UnlikeConstant, label: str) -> Correction:
    """The correction that takes a constant from the other model."""
    return Correction(constant.name, constant.wanted, f"from {label}")


def _of_codes(b: Reals, constant: UnlikeConstant, stored: Stored) -> Iterator[_Guess]:
    """Yield its codes with other parameters: along another axis, with another layer's scale, of another type."""
    codes, scale, zero = stored.parameters()
    names = stored.names
    axis = stored.axis
    if scale.size > 1 and scale.ndim == 1:
        for other in range(codes.ndim):
            if other != axis and codes.shape[other] == scale.size:
                text = f"{names[1]} runs along axis {axis} of the {constant.role}; along axis {other} it fits"
                yield _Guess(Fault("scale-axis", text), stored.real(axis=other))
    if constant.role == "bias":
        yield from _product_of_scales(b, constant, stored)
    for name, other_scale in b.scales.items():
        if name != names[1] and other_scale.shape == scale.shape and not np.array_equal(other_scale, scale):
            text = f"{_scale_text(names[1], scale)} does not fit: {name} does{_number_text(other_scale)}"
            change = f"{_number(scale)} -> {_number(other_scale)}, the value of {name}"
            fault = Fault("exchanged-scales", text, (Correction(names[1], other_scale, change),))
            yield _Guess(fault, stored.real(scale=other_scale))
    if codes.dtype.itemsize == 1 and codes.dtype.kind in "iu" and codes.dtype in (np.int8, np.uint8):
        other_type = np.dtype(np.uint8 if codes.dtype == np.int8 else np.int8)
        for zeros in (zero.view(other_type), np.zeros(zero.shape, other_type)):
            text = f"the codes of the {constant.role} are {other_type}, but stored as {codes.dtype}"
            yield _Guess(Fault("code-type", text), stored.real(codes=codes.view(other_type), zero=zeros))
    yield from _zero_point(constant, stored)


def _zero_point(constant: UnlikeConstant, stored: Stored) -> Iterator[_Guess]:
    """Guess: the zero point is off by a number of steps."""
    codes, _, zero = stored.parameters()
    steps = stored.steps()
    if steps is None or steps.size != constant.mine.size or zero.size != 1 or not steps.all():
        return
    off = round(float(np.median((constant.mine.reshape(-1) - constant.wanted.reshape(-1)) / steps.reshape(-1))))
    low, high = integer_range(codes.dtype)
    fits = int(zero.astype(np.int64).reshape(())) + off
    if off and low <= fits <= high:
        array = np.full(zero.shape, fits, zero.dtype)
        name = stored.names[2]
        text = f"{name or 'the zero point'} {fits - off} of the {constant.role} does not fit: {fits} does"
        made = (Correction(name, array, f"{fits - off} -> {fits}"),) if name else ()
        yield _Guess(Fault("zero-point", text, made), stored.real(zero=array))


def _product_of_scales(b: Reals, constant: UnlikeConstant, stored: Stored) -> Iterator[_Guess]:
    """Yield the bias with the scale that it should have: the product of the scales of input and weights."""
    node, scale = b.nodes[constant.place], stored.parameters()[1]
    source, weights = b.sources.get(node.inputs[0]), b.quantized_constant(node.inputs[1])
    if source is None or not source.path or weights is None:
        return
    read = [b.nodes[source.path[-1]].inputs[1], b.nodes[weights].inputs[1]]
    found = [b.constant(name) for name in read]
    if any(one is None for one in found) or found[0].size != 1:  # type: ignore[union-attr]
        return
    fits = np.asarray(found[0].reshape(()) * found[1], scale.dtype)  # type: ignore[union-attr]
    if fits.size != scale.size or np.allclose(fits.reshape(-1), scale.reshape(-1), rtol=0.01):
        return
    fits = fits.reshape(scale.shape)
    name = stored.names[1]
    product = " * ".join(b.own_name(n) for n in read)
    text = f"{_scale_text(name, scale)} does not fit the bias: {product} does{_number_text(fits)}"
    change = f"{_number(scale)} -> {_number(fits)}"
    yield _Guess(Fault("bias-scale", text, (Correction(name, fits, change),)), stored.real(scale=fits))


def _factor(constant: UnlikeConstant, stored: Stored | None, label: str) -> _Guess:
    """The guess that all of the constant is too large by one factor."""
    mine, wanted = constant.mine.reshape(-1), constant.wanted.reshape(-1)
    factor = float(mine @ wanted / (wanted @ wanted)) or math.nan
    fixed = constant.mine / factor
    if factor < 0:
        have, size = ("have" if constant.role == "weights" else "has"), f"{-factor:.3g}"
        larger = "" if size == "1" else f" and {size} times the size"
        fault = Fault("negated", f"{_role(constant)} {have} the opposite sign{larger} of {label}'s")
    elif constant.role == "weights" and stored is not None:
        fault = scale_factor(stored.names[1], stored.parameters()[1], factor)
    else:
        who = "is" if constant.role != "weights" else "are"
        text = f"{_role(constant)} {who} {_factor_text(factor)} as large as in {label}"
        name = constant.name
        made = (_correction_from(constant, label),) if name and stored is None and constant.role == "constant" else ()
        factors = stored.factors if stored is not None and constant.role == "bias" else ()
        fault = Fault(f"{constant.role}-factor", text, made, factors, factor)
    return _Guess(fault, fixed)


def scale_factor(name: str, scale: Array, factor: float) -> Fault:
    """The fault of a scale that is too large by this factor, with its correction."""
    right = np.asarray(scale / factor, scale.dtype)
    text = f"{_scale_text(name, scale)} is {_ratio_text(factor)}: {_number(right)} fits"
    return Fault("scale-factor", text, (Correction(name, right, f"{_number(scale)} -> {_number(right)}"),))


def _per_channel(constant: UnlikeConstant, stored: Stored) -> _Guess:
    """The guess that each output channel has a factor: scales in another order, or wrong scales."""
    rows, wanted = (x.reshape(len(x), -1) for x in (constant.mine, constant.wanted))
    codes, scale, _ = stored.parameters()
    name = stored.names[1]
    with np.errstate(all="ignore"):
        factors = (rows * wanted).sum(1) / (wanted * wanted).sum(1)
    factors = np.where(np.isfinite(factors) & (factors != 0), factors, 1.0)
    fixed = rows / factors[:, None]
    if scale.size != len(rows) or rows.shape[1] < 2:
        text = f"{_scale_text(name, scale)} does not fit: channels need their own scales, {_range_text(factors)} times smaller"
        return _Guess(Fault("scale-factors", text), fixed if rows.shape[1] > 1 else None)
    right = np.asarray(scale.reshape(-1) / factors, scale.dtype).reshape(scale.shape)
    moved = np.flatnonzero(np.abs(factors - 1) > 0.05)
    flat, back = scale.reshape(-1), right.reshape(-1)
    if len(moved) > 1 and np.allclose(np.sort(flat[moved]), np.sort(back[moved]), rtol=0.03):
        text = f"{_name_places(moved, 'scale', 'scales')} in {name} {_are_exchanged(moved)}"
        kind, change = "exchanged-scales", "in the order of the channels"
    else:
        text = (
            f"{_name_places(moved, 'scale', 'scales')} in {name} {'do' if len(moved) > 1 else 'does'} not fit, {_range_text(factors[moved])} times too large"
            if len(moved)
            else ""
        )
        kind, change = "scale-factors", f"{_number(scale)} -> {_number(right)}"
    return _Guess(Fault(kind, text, (Correction(name, right, change),)), fixed)


def _orders(constant: UnlikeConstant, stored: Stored | None) -> Iterator[_Guess]:
    """Yield guesses of exchanged or transposed channels, and of transposed or mirrored kernels."""
    mine, wanted = constant.mine, constant.wanted
    if mine.shape[0] == mine.shape[1]:
        turned = Fault("transposed", "the weights are transposed here")
        yield _Guess(turned, np.swapaxes(mine, 0, 1))
        codes = stored.parameters()[0] if stored is not None else None
        if stored is not None and codes is not None and codes.ndim > 1 and codes.shape[0] == codes.shape[1]:
            yield _Guess(turned, stored.real(codes=np.ascontiguousarray(np.swapaxes(codes, 0, 1))))
    for axis, what in ((0, "output"), (1, "input")):
        rows, others = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (mine, wanted))
        order = _order(rows, others)
        if order is None:
            continue
        moved = np.flatnonzero(order != np.arange(len(order)))
        back = np.empty_like(rows)
        back[order] = rows
        shape = np.moveaxis(mine, axis, 0).shape
        text = f"{_name_places(moved, f'{what} channel', f'{what} channels')} of the weights {_are_exchanged(moved)}"
        yield _Guess(Fault("exchanged-channels", text), np.moveaxis(back.reshape(shape), 0, axis))
        sizes = np.linalg.norm(others, axis=1) / np.maximum(np.linalg.norm(back, axis=1), 1e-30)
        back = back * sizes[:, None]
        text = f"{text}, but not their scales"
        yield _Guess(Fault("exchanged-codes", text), np.moveaxis(back.reshape(shape), 0, axis))
    if mine.ndim > 2 and mine.shape[-1] > 1:
        yield _Guess(Fault("transposed", "the kernels are transposed here"), np.swapaxes(mine, -1, -2))
        yield _Guess(Fault("mirrored", "the kernels are mirrored here"), np.flip(mine, tuple(range(2, mine.ndim))))


def _order(rows: Array, others: Array) -> Array | None:
    """For each row, the index of the matching row of `others`; None if no order fits, or if it is the same order."""
    if rows.shape[1] < 3 or len(rows) < 2 or len(rows) > _MANY:
        return None
    with np.errstate(all="ignore"):
        one, two = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rows, others))
    one, two = np.nan_to_num(one), np.nan_to_num(two)
    order = np.arange(len(rows))
    bad = np.flatnonzero((one * two).sum(1) < _ALIKE)
    if len(bad) < 2:
        return None
    order[bad] = bad[np.argmax(one[bad] @ two[bad].T, axis=1)]
    fits = len(set(order.tolist())) == len(order) and bool((order != np.arange(len(order))).any())
    return order if fits else None


def _order_of_numbers(constant: UnlikeConstant) -> Iterator[_Guess]:
    """Yield the guess that the constant has the same numbers in another order."""
    mine, wanted = constant.mine.reshape(-1), constant.wanted.reshape(-1)
    if mine.size > 1 and sqnr(np.sort(mine), np.sort(wanted)) >= FINE:
        size = float(np.abs(wanted).max(initial=0.0))
        moved = np.flatnonzero(np.abs(mine - wanted) > 0.02 * size)
        if len(moved) > 1:
            text = f"{_name_places(moved, 'number', 'numbers')} of {_role(constant)} {_are_exchanged(moved)}"
            yield _Guess(Fault(f"{constant.role}-order", text), constant.wanted)


def _name_places(places: Sequence[int] | Array, one: str, several: str) -> str:
    """Some indices in words."""
    numbers = [str(int(index)) for index in places]
    if len(numbers) <= 4:
        return f"{one if len(numbers) == 1 else several} {', '.join(numbers[:-1])}{' and ' if numbers[1:] else ''}{numbers[-1] if numbers else ''}"
    return f"{len(numbers)} {several}"


def _are_exchanged(places: Sequence[int] | Array) -> str:
    """ "are swapped" for two, else "are in a different order"."""
    return "are swapped" if len(places) == 2 else "are in a different order"


def _factor_text(factor: float) -> str:
    """A factor in words."""
    return f"{factor:.3g} times"


def _range_text(factors: Array) -> str:
    """The range of factors in words."""
    least, most = f"{factors.min():.3g}", f"{factors.max():.3g}"
    return least if least == most else f"{least} to {most}"


def _ratio_text(factor: float) -> str:
    """How much too large or small a factor is, in words."""
    return f"{factor:.3g} times too large" if factor > 1 else f"{1 / factor:.3g} times too small"


def _scale_text(name: str, scale: Array) -> str:
    """A scale in words."""
    return f"{name} {_number(scale)}"


def _number(array: Array) -> str:
    """Format one number, or the range of several."""
    flat = np.asarray(array, np.float64).reshape(-1)
    return f"{flat[0]:.4g}" if flat.size == 1 else f"{flat.min():.3g}..{flat.max():.3g}"


def _number_text(array: Array) -> str:
    """A number in words, in brackets."""
    return f" ({_number(array)})"


MISSING = "missing-operator"
_EQUAL = 60.0
"""dB above which two float32 computations are the same."""


class _Edits:
    """Yields changes to the operators of one side, each with the fault that it represents."""

    def __init__(self, a: Reals, b: Reals, group: RoundingGroup, constants: Constants, label: str) -> None:
        self.a, self.b, self.group, self.constants, self.label = a, b, group, constants, label
        self.pairs = pairs = group.pairs
        folded = [{at for at, _ in side.chain} for sides in constants.products.values() for side in sides]
        done = set().union(*folded)
        self.extra = [p for p in group.region.operators if p not in pairs and p not in done]
        self.lost = [q for q in group.there.operators if q not in pairs.values() and q not in done]

    def of_first(self) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """Yield changes to the first model's operators that may turn them into the second model's."""
        for other in self.lost:
            node = self.a.nodes[other]
            for read in [at for at, _ in self.a.inputs(other)]:
                text = f"{_with_article(node.op_type)} of {self.label} is missing here"
                yield Fault(MISSING, text), {other: partial(pass_through, read)}
        for index, other in self.pairs.items():
            yield from self._attributes(index, other)
            yield from self._exchanged_inputs(other, self.a.nodes[other])
        for other in self.lost:
            for index in self.extra:
                yield from self._replacements(index, other)
        if len(self.lost) > 1:
            names = ", ".join(self.a.nodes[q].op_type for q in self.lost)
            gone: dict[int, Operation] = {
                q: partial(pass_through, next(at for at, _ in self.a.inputs(q))) for q in self.lost
            }
            yield Fault(MISSING, f"{names} of {self.label} are missing here"), gone

    def _attributes(self, index: int, other: int) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """Edits that give an operator the attributes of its counterpart."""
        mine, theirs = self.b.nodes[index], self.a.nodes[other]
        if mine.op_type != theirs.op_type:
            yield from self._replacements(index, other)
            return
        names = [
            n
            for n in {**mine.attributes, **theirs.attributes}
            if not _equal(mine.attributes.get(n), theirs.attributes.get(n))
        ]
        for name in [*names, *([None] if len(names) > 1 else [])]:
            changed = [name] if name else names
            kept = {k: v for k, v in theirs.attributes.items() if k not in changed}
            node = replace(theirs, attributes=kept | {k: v for k, v in mine.attributes.items() if k in changed})
            said = "; ".join(
                f"{k} of its {mine.op_type} {_attribute_clause(mine, k)} here, {_attribute(theirs, k)} in {self.label}"
                for k in changed
            )
            yield Fault("other-attribute", said), {other: partial(self.a.apply, node)}
        for at, (one, two) in enumerate(zip(mine.inputs, theirs.inputs, strict=False)):
            got, want = self.b.constant(one), self.a.constant(two)
            if got is not None and want is not None and got.dtype.kind in "iu" and not np.array_equal(got, want):
                said = f"input {at} of its {mine.op_type} is {got.tolist()} here, {want.tolist()} in {self.label}"
                yield Fault("other-attribute", said), {other: partial(_apply_with, self.a, theirs, at, got)}

    def _exchanged_inputs(self, other: int, node: Node) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """The edit that exchanges an operator's two inputs."""
        if len(node.inputs) == 2 and all(node.inputs):
            text = f"the inputs of its {node.op_type} are swapped here"
            yield Fault("exchanged-inputs", text), {other: lambda args: self.a.apply(node, args[::-1])}

    def _replacements(self, index: int, other: int) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """Yield an operator of the second model in place of one of the first."""
        mine, theirs = self.b.nodes[index], self.a.nodes[other]
        read = [[at for at, _ in side.inputs(p)] for side, p in ((self.b, index), (self.a, other))]
        if not read[0] or not read[1]:
            return
        text = f"{_with_article(theirs.op_type)} of {self.label} is {_with_article(mine.op_type)} here"
        if mine.op_type == theirs.op_type:
            text = f"the inputs of its {mine.op_type} are swapped here"
        for order in (1, -1) if len(read[0]) == len(read[1]) == 2 else (1,):
            made = partial(self._as_mine, mine, read[0], read[1][::order])
            yield Fault("other-operator" if mine.op_type != theirs.op_type else "exchanged-inputs", text), {other: made}

    def _as_mine(self, node: Node, into: list[int], read: list[int], args: list[Array | None]) -> tuple[Array, ...]:
        """Run a node of the second model in place of one of the first."""
        given = [self.b.constant(name) for name in node.inputs]
        for at, from_ in zip(into, read, strict=False):
            given[at] = args[from_]
        return self.b.apply(node, given)

    def of_second(self) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """Yield the removal of each operator that only the second model has."""
        for index in self.extra:
            for read in [at for at, _ in self.b.inputs(index)]:
                text = f"{self.label} has no {self.b.nodes[index].op_type} here"
                yield Fault("extra-operator", text), {index: partial(pass_through, read)}


def judge_structure(
    a: Reals,
    b: Reals,
    group: RoundingGroup,
    constants: Constants,
    clean: Values,
    inside: Callable[[Array], Array],
    label: str,
) -> tuple[float, Fault | None]:
    """Compare both models' operators with the first one's constants: the SQNR in dB, and the fault that explains it.

    inside: clips values to the range of the result. label: the first model's label.
    """
    raw = inside(clean[group.raw])
    fair = inside(simulate(b, group, clean, own=False, instead=constants.instead()).reshape(raw.shape))
    own = sqnr(fair, raw)
    if own >= _EQUAL:
        return own, None
    edits = _Edits(a, b, group, constants, label)
    held = {value: clean[a.name_after_rounding(value)] for value in group.there.inputs}
    for fault, instead in edits.of_first():
        made = _try_change(lambda at=instead: operate(a, group.there, dict(held), NO_PATHS, at)[group.raw], raw)  # type: ignore[misc]
        if made is not None and sqnr(inside(made), fair) >= max(_EQUAL, own + FINE):
            return own, fault
    for fault, instead in edits.of_second():
        whole = {**constants.instead(), **instead}
        made = _try_change(lambda at=whole: simulate(b, group, clean, own=False, instead=at), raw)  # type: ignore[misc]
        if made is not None and sqnr(inside(made), raw) >= max(_EQUAL, own + FINE):
            return own, fault
    return own, None


def _try_change(compute: Callable[[], Array], like: Array) -> Array | None:
    """The result of a change; None if it cannot be computed, or has another size."""
    try:
        array = compute()
    except (QrunError, ValueError, IndexError, TypeError):
        return None
    return array.reshape(like.shape) if array.size == like.size else None


def _apply_with(a: Reals, node: Node, at: int, array: Array, args: list[Array | None]) -> tuple[Array, ...]:
    """Run a node with another array as one input."""
    return a.apply(node, [*args[:at], array, *args[at + 1 :]])


def _equal(one: Any, other: Any) -> bool:
    """Whether two attributes are equal."""
    return bool(np.array_equal(one, other)) if one is not None and other is not None else one is other


def _attribute_clause(node: Node, name: str) -> str:
    """ "is" or "are" and an attribute's value."""
    return f"{'are' if name.endswith('s') and not name.endswith('axis') else 'is'} {_attribute(node, name)}"


def _attribute(node: Node, name: str) -> str:
    """An attribute in words."""
    value = node.attributes.get(name)
    if value is None:
        return "not given"
    return str(list(value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def _with_article(op: str) -> str:
    """An operator with its article."""
    return f"{'an' if op[:1] in 'AEIOU' else 'a'} {op}"
