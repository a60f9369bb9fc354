"""Winograd's minimal filtering: neighbouring results of three taps, in fewer multiplications than they have products.

The functions take anything that adds and multiplies: values of generated code, fractions, rows of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qrun.declare.frozen import frozen

TAPS = 3
Transform = Callable[[Sequence[Any]], list[Any]]


@frozen
class Filtering:
    """results: how many neighbours are made together, of `results` + 2 pixels.

    result(filter(g) * image(d)) is [d0 * g0 + d1 * g1 + d2 * g2, d1 * g0 + ...], with products element by element. Each
    term of the sums that the three make is rounded at most `roundings` times, in this order: image, filter, result.
    """

    results: int
    image: Transform
    filter: Transform
    result: Transform
    roundings: tuple[int, int, int]

    @property
    def side(self) -> int:
        """Pixels that are read, and products."""
        return self.results + TAPS - 1


def _image2(d: Sequence[Any]) -> list[Any]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _filter2(g: Sequence[Any]) -> list[Any]:
    ends, middle = (g[0] + g[2]) * 0.5, g[1] * 0.5
    return [g[0], ends + middle, ends - middle, g[2]]


def _result2(m: Sequence[Any]) -> list[Any]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


TWO = Filtering(2, _image2, _filter2, _result2, (1, 2, 2))


def both(transform: Transform, square: Sequence[Any]) -> list[Any]:
    """The transform along both axes of a square, whose elements stand row by row."""
    side = round(len(square) ** 0.5)
    columns = [transform(square[n::side]) for n in range(side)]
    return [made for row in zip(*columns, strict=True) for made in transform(row)]
