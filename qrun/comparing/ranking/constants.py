"""Compares the constants of a group with the first model's: products unfolded to matrix and bias, other operators by
place. Also computes the group with the first model's constants, and decodes constants as they are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from qrun.comparing.matching.graph import Reals, Region
from qrun.comparing.ranking.groups import Operation, RoundingGroup
from qrun.declare.frozen import frozen
from qrun.errors import OperatorError
from qrun.ir import Array, Node

_SAME = 1e-6
"""The difference, as a share of the largest magnitude, up to which two constants are equal."""


@frozen(eq=False)
class FoldedProduct:
    """A product with constant weights. The result of its `chain` is matrix * x + bias, per output channel.

    weights: the name of the weights; axis: the axis of their output channels.
    matrix:  the weights with the output channels first, times alpha and the factors of the chain, as float64.
    bias:    by channel, with the summands of the chain; biases: the names of the constants in it.
    factor:  by channel, the factor on the stored weights; alpha: the operator's own part of it.
    behind:  the number of axes after the output channels in the result.
    chain:   the operators after it that only multiply and add constants per channel: (place, input that is read).
    """

    place: int
    weights: str
    axis: int
    matrix: Array
    bias: Array
    biases: tuple[str, ...]
    factor: Array
    alpha: float
    behind: int
    chain: tuple[tuple[int, int], ...]

    def to_weights(self, matrix: Array, like: Array) -> Array:
        """Convert a matrix to the operator's weights, with the shape and type of `like`."""
        rows = np.moveaxis(like, self.axis, 0).shape
        return np.ascontiguousarray(np.moveaxis(matrix.reshape(rows) / self.alpha, 0, self.axis), like.dtype)


def product_of(reals: Reals, inner: Region, index: int) -> FoldedProduct | None:
    """The product of an operator of a region, with the operators after it; None if it is no product."""
    node, weights = reals.nodes[index], reals.constant(reals.nodes[index].inputs[1]) if _has_two(reals, index) else None
    if weights is None or weights.ndim < 2 or weights.dtype.kind != "f":
        return None
    axis, behind = _channels(node, weights)
    if axis is None:
        return None
    rows = np.moveaxis(weights, axis, 0).astype(np.float64)
    gemm = node.op_type == "Gemm"
    alpha, beta = ((float(node.attributes.get(n, 1.0)) if gemm else 1.0) for n in ("alpha", "beta"))  # type: ignore[arg-type]
    factor, shift, biases = np.full(len(rows), alpha), np.zeros(len(rows)), []
    if len(node.inputs) > 2 and node.inputs[2]:
        added = _vector(reals.constant(node.inputs[2]), len(rows), 0)
        if added is None:
            return None
        shift, biases = beta * added, [node.inputs[2]]
    chain: list[tuple[int, int]] = []
    at = node.outputs[0]
    while (step := _next(reals, inner, at, len(rows), behind)) is not None:
        place_, read, (times, plus), names = step
        factor, shift = factor * times, shift * times + plus
        biases += names
        chain.append((place_, read))
        at = reals.nodes[place_].outputs[0]
    matrix = rows * factor.reshape(-1, *[1] * (rows.ndim - 1))
    return FoldedProduct(index, node.inputs[1], axis, matrix, shift, tuple(biases), factor, alpha, behind, tuple(chain))


def _has_two(reals: Reals, index: int) -> bool:
    """Whether a node computes from a tensor and a second operand."""
    node = reals.nodes[index]
    return not node.domain and len(node.inputs) > 1 and node.inputs[0] in reals.sources


def _channels(node: Node, weights: Array) -> tuple[int | None, int]:
    """The axis of the output channels in the weights, None if the operator is no product,
    and the number of axes after them in the result."""
    if node.op_type == "Conv":
        return 0, weights.ndim - 2
    if node.op_type == "ConvTranspose":
        return (1 if node.attributes.get("group", 1) == 1 else None), weights.ndim - 2
    if node.op_type == "Gemm":
        return (None if node.attributes.get("transA", 0) else 0 if node.attributes.get("transB", 0) else 1), 0
    return (1 if node.op_type == "MatMul" and weights.ndim == 2 else None), 0


def _vector(value: Array | None, count: int, behind: int) -> Array | None:
    """A constant with one number, or one per channel, as `count` numbers; None for other constants."""
    if value is None or value.dtype.kind not in "fiu":
        return None
    if value.size == 1:
        return np.full(count, float(value.reshape(())))
    fits = value.size == count and value.ndim > behind and value.shape[value.ndim - 1 - behind] == count
    return value.astype(np.float64).reshape(-1) if fits else None


def _next(
    reals: Reals, inner: Region, value: str, count: int, behind: int
) -> tuple[int, int, tuple[Array, Array], list[str]] | None:
    """The only reader of a value, if it only multiplies and adds per channel: its place, the input that reads it,
    the factors and summands, and the constants that it adds."""
    reads = reals.readers.get(value, [])
    if len(reads) != 1 or reads[0].path or reads[0].operator not in inner.operators:
        return None
    index, at = reads[0].operator, reads[0].place
    node = reals.nodes[index]
    if node.domain or sum(name in reals.sources for name in node.inputs) != 1:
        return None
    last = 0 if node.op_type == "BatchNormalization" else behind
    found = [_vector(reals.constant(name), count, last) for i, name in enumerate(node.inputs) if i != at]
    if any(one is None for one in found) or not found:
        return None
    step = _affine(node, at, found)  # type: ignore[arg-type]
    added = [name for i, name in enumerate(node.inputs) if i != at and node.op_type in ("Add", "Sub")]
    return None if step is None else (index, at, step, added)


def _affine(node: Node, at: int, constants: list[Array]) -> tuple[Array, Array] | None:
    """The factors and summands of an operator that multiplies or adds constants; None for other operators."""
    c = constants[0]
    one, none = np.ones_like(c), np.zeros_like(c)
    with np.errstate(all="ignore"):
        if node.op_type == "BatchNormalization" and at == 0 and len(constants) == 4 and len(node.outputs) == 1:
            scale, shift, mean, var = constants
            factor = scale / np.sqrt(var + float(node.attributes.get("epsilon", 1e-5)))  # type: ignore[arg-type]
            return factor, shift - mean * factor
        known = {"Add": (one, c), "Mul": (c, none), "Sub": (one, -c) if at == 0 else (-one, c)}
        if node.op_type == "Div" and at == 0:
            known["Div"] = (1 / c, none)
    return known.get(node.op_type)


@frozen(eq=False)
class UnlikeConstant:
    """A constant of a group that differs from the first model's.

    role:   ``weights``, ``bias``, or ``constant`` for any other.
    name:   the second model's tensor, "" if there is none; other: the first model's.
    mine:   its numbers, for weights and biases as in `FoldedProduct`; wanted: the first model's numbers.
    place, at: the operator that reads it, and the input's position.
    """

    role: str
    name: str
    other: str
    mine: Array
    wanted: Array
    place: int
    at: int


class Constants:
    """The constants of a group that differ from the first model's (`found`).

    products: by place, pairs of matching products: the second model's, then the first one's.
    """

    def __init__(self, a: Reals, b: Reals, group: RoundingGroup) -> None:
        self.b = b
        self.products: dict[int, tuple[FoldedProduct, FoldedProduct]] = {}
        for index in group.region.operators:
            other = group.pairs.get(index)
            if other is not None:
                mine, theirs = product_of(b, group.region, index), product_of(a, group.there, other)
                if mine and theirs and (mine.matrix.size, len(mine.bias)) == (theirs.matrix.size, len(theirs.bias)):
                    self.products[index] = mine, theirs
        folded = {at for mine, _ in self.products.values() for at, _ in mine.chain} | set(self.products)
        rest = [(p, group.pairs[p]) for p in group.region.operators if p in group.pairs and p not in folded]
        self.found = [*self._of_products(), *(c for p, q in rest for c in _others(a, b, p, q))]

    def _of_products(self) -> Iterator[UnlikeConstant]:
        """Weights and biases of products that differ between the models."""
        for index, (mine, theirs) in self.products.items():
            wanted = theirs.matrix.reshape(mine.matrix.shape)
            if not _same(mine.matrix, wanted):
                yield UnlikeConstant("weights", mine.weights, theirs.weights, mine.matrix, wanted, index, 1)
            if not _same(mine.bias, theirs.bias):
                name, other = (p.biases[0] if len(p.biases) == 1 else "" for p in (mine, theirs))
                yield UnlikeConstant("bias", name, other, mine.bias, theirs.bias, index, 2)

    def instead(self, keep: Collection[UnlikeConstant] = ()) -> dict[int, Operation]:
        """Operations that replace the group's own and use the first model's constants, except for those in `keep`."""
        kept = {(c.place, c.at) for c in keep}
        made: dict[int, Operation] = {}
        for index, (mine, theirs) in self.products.items():
            matrix, bias = (mine if (index, at) in kept else theirs for at in (1, 2))
            made[index] = partial(self._multiply, mine, matrix.matrix, bias.bias)
            made.update((at, partial(pass_through, read)) for at, read in mine.chain)
        for index in {c.place for c in self.found if c.role == "constant"}:
            values = {c.at: c.wanted for c in self.found if c.place == index and (index, c.at) not in kept}
            made[index] = partial(self._with, index, values)
        return made

    def _multiply(
        self, product: FoldedProduct, matrix: Array, bias: Array, args: list[Array | None]
    ) -> tuple[Array, ...]:
        """The product with another matrix and bias."""
        x, weights = args[:2]
        assert weights is not None
        node = self.b.nodes[product.place]
        (y,) = self.b.compute(product.place, [x, product.to_weights(matrix, weights), *[None] * (len(node.inputs) - 2)])
        return (np.asarray(y + bias.reshape(-1, *[1] * product.behind), y.dtype),)

    def _with(self, index: int, values: dict[int, Array], args: list[Array | None]) -> tuple[Array, ...]:
        """The operator with some inputs replaced."""
        return self.b.compute(index, [values.get(at, array) for at, array in enumerate(args)])


def pass_through(read: int, args: list[Array | None]) -> tuple[Array, ...]:
    """An operation that returns its input number `read` unchanged."""
    array = args[read]
    assert array is not None
    return (array,)


def _others(a: Reals, b: Reals, index: int, other: int) -> Iterator[UnlikeConstant]:
    """Yield the float constants of a pair of operators that have one size but different values."""
    mine, theirs = b.nodes[index], a.nodes[other]
    found = [
        [(at, n) for at, n in enumerate(node.inputs) if n and n not in r.sources]
        for r, node in ((b, mine), (a, theirs))
    ]
    if len(found[0]) != len(found[1]):
        return
    for (at, name), (_, wanted) in zip(*found, strict=True):
        got, want = b.constant(name), a.constant(wanted)
        if got is None or want is None or got.dtype.kind != "f" or want.dtype.kind != "f" or got.size != want.size:
            continue
        want = np.asarray(want, got.dtype).reshape(got.shape)
        if not _same(got, want):
            yield UnlikeConstant("constant", name, wanted, got, want, index, at)


def _same(one: Array, other: Array) -> bool:
    """Whether two constants are equal up to rounding."""
    with np.errstate(all="ignore"):
        size = float(np.abs(other).max(initial=0.0))
        return bool((np.abs(one.astype(np.float64) - other) <= _SAME * size).all())


@frozen(eq=False)
class Stored:
    """A constant stored as codes, with the DequantizeLinear at `place` that decodes it.

    moved: operators between that and the reader. product: the product that reads it, if one does; role: as what.
    """

    b: Reals
    place: int
    moved: Sequence[int]
    product: FoldedProduct | None
    role: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the model's constants: codes, scale, zero point."""
        codes, scale, zero = (*self.b.nodes[self.place].inputs, "")[:3]
        return self.b.own_name(codes), self.b.own_name(scale), self.b.own_name(zero)

    @property
    def axis(self) -> int:
        """The axis of the scales."""
        codes = self.parameters()[0]
        axis = int(self.b.nodes[self.place].attributes.get("axis", 1))  # type: ignore[arg-type]
        return axis % max(codes.ndim, 1)

    @property
    def factors(self) -> tuple[str, ...]:
        """The scales whose product its scale is; () if its scale is a stored constant."""
        return self.b.factors_of(self.b.nodes[self.place].inputs[1])

    def parameters(self) -> tuple[Array, Array, Array]:
        """Codes, scale and zero point."""
        codes, scale, zero = (self.b.constant(name) for name in (*self.b.nodes[self.place].inputs, "")[:3])
        assert codes is not None
        assert scale is not None
        return codes, scale, np.zeros(scale.shape, codes.dtype) if zero is None else zero

    def real(
        self, codes: Array | None = None, scale: Array | None = None, zero: Array | None = None, axis: int | None = None
    ) -> Array | None:
        """Decode the constant with these parameters in place of its own; None if they do not fit each other."""
        node = self.b.nodes[self.place]
        args = [own if one is None else one for one, own in zip((codes, scale, zero), self.parameters(), strict=True)]
        if axis is not None:
            node = replace(node, attributes={**node.attributes, "axis": axis})
        try:
            return self.to_constant_form(self.b.apply(node, args)[0])
        except (OperatorError, ValueError):
            return None

    def to_constant_form(self, array: Array) -> Array | None:
        """Convert an array in the shape of the codes to the form of `UnlikeConstant.mine`."""
        for index in self.moved:
            rest = [self.b.constant(name) for name in self.b.nodes[index].inputs[1:]]
            array = self.b.apply(self.b.nodes[index], [array, *rest])[0]
        array = array.astype(np.float64)
        if self.product is None or self.role == "constant":
            return array
        if self.role == "bias":
            return array.reshape(-1)
        rows = np.moveaxis(array, self.product.axis, 0)
        return rows * self.product.factor.reshape(-1, *[1] * (rows.ndim - 1))

    def steps(self) -> Array | None:
        """The distance between neighbouring codes, for each element; None if it cannot be computed."""
        codes, _, zero = self.parameters()
        one, none = (self.real(np.full(codes.shape, n, codes.dtype), zero=np.zeros_like(zero)) for n in (1, 0))
        return None if one is None or none is None else np.abs(one - none)


def stored_codes(b: Reals, constant: UnlikeConstant, constants: Constants) -> Stored | None:
    """The stored codes of a constant; None if it is not stored as codes, or if something is folded into it."""
    index = b.quantized_constant(constant.name) if constant.name else None
    if index is None:
        return None
    moved, at = [], constant.name
    while b.producers[at] != index:
        moved.append(b.producers[at])
        at = b.nodes[moved[-1]].inputs[0]
    product = constants.products.get(constant.place, (None, None))[0]
    found = Stored(b, index, moved[::-1], product, constant.role)
    own = found.real()
    fits = own is not None and own.size == constant.mine.size
    return found if fits and np.allclose(own.reshape(-1), constant.mine.reshape(-1), rtol=1e-4) else None  # type: ignore[union-attr]
