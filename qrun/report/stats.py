"""Statistics of a tensor for reports: extremes, mean, argmax, NaN and Inf counts, and some values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import computable, shape_text, type_name
from qrun.report.grid import Column, Grid
from qrun.report.screen import NAME, Screen
from qrun.report.text import number, shorten_all, width_of

SHOWN = 32
ROWS = 4
"""The number of rows whose argmax is shown."""
ENDS = 3


@frozen
class Stats:
    """low and high of the elements that are not NaN, mean of the finite ones; None if there are none.

    argmax: index of the first maximum, without axes of size 1.
    rows:   for arrays that are [N,C] without axes of size 1, the index of each row's first maximum,
            None for a row of NaN.
    """

    low: float | int | None = None
    high: float | int | None = None
    mean: float | None = None
    argmax: tuple[int, ...] | None = None
    nan: int = 0
    inf: int = 0
    rows: tuple[int | None, ...] | None = None

    @property
    def odd(self) -> bool:
        """Whether there is a NaN or an infinity."""
        return self.nan > 0 or self.inf > 0


def stats(array: Array) -> Stats:
    values = numeric(array)
    if values is None or not values.size:
        return Stats()
    with np.errstate(all="ignore"):
        total = float(values.sum(dtype=np.float64))
    if math.isfinite(total):
        low, high = values.min().item(), values.max().item()
        low, high = (int(low), int(high)) if values.dtype.kind in "biu" else (low, high)
        return Stats(low, high, total / values.size, _place(values), rows=_rows(values))
    odd = np.isnan(values)
    nan, inf = int(odd.sum()), int(np.isinf(values).sum())
    if nan == values.size:
        return Stats(nan=nan)
    with np.errstate(all="ignore"):
        finite = values[np.isfinite(values)]
        mean = float(finite.mean(dtype=np.float64)) if finite.size else None
    lowest = np.where(odd, values.dtype.type(-np.inf), values)
    return Stats(float(np.nanmin(values)), float(lowest.max()), mean, _place(lowest), nan, inf, _rows(lowest, odd))


def _place(values: Array) -> tuple[int, ...]:
    first = int(values.argmax())
    place: tuple[Any, ...] = (first,) if values.ndim == 1 else np.unravel_index(first, values.shape)
    return tuple(int(i) for i, size in zip(place, values.shape, strict=True) if size > 1) or (0,)


def _rows(values: Array, odd: Array | None = None) -> tuple[int | None, ...] | None:
    """odd: the mask of elements that were NaN."""
    shape = [size for size in values.shape if size > 1]
    if len(shape) != 2:
        return None
    places = values.reshape(shape).argmax(1).tolist()
    empty = np.zeros(shape[0], bool) if odd is None else np.asarray(odd.reshape(shape).all(1))
    return tuple(None if none else at for at, none in zip(places, empty, strict=True))


def numeric(array: Array) -> Array | None:
    """The array in a type that numpy computes with; None for text and complex numbers."""
    return None if array.dtype.kind in "Oc" else computable(array)


def values_shown(array: Array) -> list[str]:
    """All elements if there are at most 32, else the first and last three around an ellipsis."""
    flat = array.reshape(-1)
    if flat.size <= SHOWN:
        return [element(v) for v in flat]
    return [*(element(v) for v in flat[:ENDS]), "…", *(element(v) for v in flat[-ENDS:])]


def element(value: Any) -> str:
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (complex, np.complexfloating)):
        return f"{complex(value):.4g}"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, np.floating):
        return number(float(value))
    kind = type_name(np.asarray(value).dtype)
    return str(int(value)) if "int" in kind else number(float(value))


def to_list(array: Array, limit: int) -> list[Any] | None:
    """The elements as nested Python lists; None if there are more than `limit` elements or lists ([2**40,0] has no
    elements)."""
    lists = math.prod(takewhile(bool, array.shape))
    if max(array.size, lists) > limit:
        return None
    values = numeric(array)
    if values is not None:
        nested = values.tolist()
    elif array.dtype.kind == "O":
        nested = np.vectorize(str, otypes=[object])(array).tolist() if array.size else []
    else:
        nested = np.stack([array.real, array.imag], -1).tolist()
    return nested if isinstance(nested, list) else [nested] if array.ndim else nested


def print_arrays(screen: Screen, arrays: Mapping[str, Array], full: bool = False) -> None:
    """Prints one row per array with type, shape and extremes, then its values. full: with mean and argmax."""
    screen.grid(stats_grid([(name, type_name(a.dtype), a.shape, stats(a)) for name, a in arrays.items()], full))
    print_values(screen, arrays)


def stats_grid(rows: Sequence[tuple[str, str, Sequence[int], Stats]], full: bool = True) -> Grid:
    """One row per tensor: its name, type, shape and statistics. full: with mean and argmax."""
    odd = any(row[3].odd for row in rows)
    columns = [
        Column("name", style=NAME, shrink=2, cell=lambda row: row[0]),
        Column("type", cell=lambda row: row[1]),
        Column("shape", shrink=1, cell=lambda row: shape_text(row[2])),
        Column("min", right=True, optional=1, cell=lambda row: number(row[3].low)),
        Column("max", right=True, optional=1, cell=lambda row: number(row[3].high)),
        Column("mean", right=True, optional=3, cell=lambda row: number(row[3].mean)) if full else None,
        Column("argmax", right=True, cell=lambda row: _argmax(row[3])) if full else None,
        Column(
            "NaN/Inf",
            right=True,
            optional=0 if odd else 2,
            cell=lambda row: f"{row[3].nan}/{row[3].inf}" if row[3].odd else "0",
        ),
    ]
    grid = Grid.of(columns, rows)
    grid.styles.update({(at, len(grid.columns) - 1): "yellow" for at, row in enumerate(rows) if row[3].odd})
    return grid


def _argmax(s: Stats) -> str:
    """``3``; for [N,C] ``4,9,1,... per row``; for more axes the position, ``[0,3,1]``."""
    if s.rows is not None:
        shown = ["-" if at is None else str(at) for at in s.rows[:ROWS]]
        return ",".join([*shown, *(["…"] if len(s.rows) > ROWS else [])]) + " per row"
    return "-" if s.argmax is None else str(s.argmax[0]) if len(s.argmax) == 1 else shape_text(s.argmax)


def print_values(screen: Screen, arrays: Mapping[str, Array]) -> None:
    """Prints one paragraph per array, ``logits  [-2.947, -3.368, ... 0.8421, 15.37]``: its name, shortened to a third
    of the width, and its values."""
    names = [screen.clean(name) for name in arrays]
    if screen.width is not None:
        names = shorten_all(names, screen.width // 3, screen.ellipsis)
    width = max(map(width_of, names), default=0)
    for name, array in zip(names, arrays.values(), strict=True):
        first = f"  {name}{' ' * (width - width_of(name))}  "
        values = ", ".join(values_shown(array)).replace("…,", "…")
        screen.wrapped(first, " " * (width_of(first) + 1), f"[{values}]")
