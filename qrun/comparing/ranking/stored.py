"""A constant as it is stored: codes, and the parameters with which they are dequantized; and with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.comparing.matching.graph import Reals
from qrun.comparing.ranking.constants import Constants, FoldedProduct, UnlikeConstant
from qrun.declare.frozen import frozen
from qrun.errors import OperatorError
from qrun.ir import Array


@frozen(eq=False)
class Stored:
    """The codes of a constant, and the DequantizeLinear at `place` that makes real numbers of them.

    moved: operators between it and the one that reads the constant. product: that reads it, if one does; role: as what.
    """

    b: Reals
    place: int
    moved: Sequence[int]
    product: FoldedProduct | None
    role: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the model's own constants: codes, scale, zero point."""
        codes, scale, zero = (*self.b.nodes[self.place].inputs, "")[:3]
        return self.b.own_name(codes), self.b.own_name(scale), self.b.own_name(zero)

    @property
    def axis(self) -> int:
        codes = self.parameters()[0]
        axis = int(self.b.nodes[self.place].attributes.get("axis", 1))  # type: ignore[arg-type]
        return axis % max(codes.ndim, 1)

    @property
    def factors(self) -> tuple[str, ...]:
        """The scales that the scale is the product of; () if it is a constant of its own."""
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
        """The constant's numbers with these in place of its own; None if they do not fit each other."""
        node = self.b.nodes[self.place]
        args = [own if one is None else one for one, own in zip((codes, scale, zero), self.parameters(), strict=True)]
        if axis is not None:
            node = replace(node, attributes={**node.attributes, "axis": axis})
        try:
            return self.shown(self.b.apply(node, args)[0])
        except (OperatorError, ValueError):
            return None

    def shown(self, array: Array) -> Array | None:
        """An array in the place of the codes, in the form in which the `UnlikeConstant` shows its numbers."""
        for place in self.moved:
            rest = [self.b.constant(name) for name in self.b.nodes[place].inputs[1:]]
            array = self.b.apply(self.b.nodes[place], [array, *rest])[0]
        array = array.astype(np.float64)
        if self.product is None or self.role == "constant":
            return array
        if self.role == "bias":
            return array.reshape(-1)
        rows = np.moveaxis(array, self.product.axis, 0)
        return rows * self.product.factor.reshape(-1, *[1] * (rows.ndim - 1))

    def steps(self) -> Array | None:
        """How far two neighbouring codes are apart, for each element."""
        codes, _, zero = self.parameters()
        one, none = (self.real(np.full(codes.shape, n, codes.dtype), zero=np.zeros_like(zero)) for n in (1, 0))
        return None if one is None or none is None else np.abs(one - none)


def stored_as(b: Reals, constant: UnlikeConstant, constants: Constants) -> Stored | None:
    """What a constant is made of; None if it is not made of codes, or something is folded into it."""
    place = b.quantized_constant(constant.name) if constant.name else None
    if place is None:
        return None
    moved, at = [], constant.name
    while b.producers[at] != place:
        moved.append(b.producers[at])
        at = b.nodes[moved[-1]].inputs[0]
    product = constants.products.get(constant.place, (None, None))[0]
    found = Stored(b, place, moved[::-1], product, constant.role)
    own = found.real()
    fits = own is not None and own.size == constant.mine.size
    return found if fits and np.allclose(own.reshape(-1), constant.mine.reshape(-1), rtol=1e-4) else None  # type: ignore[union-attr]
