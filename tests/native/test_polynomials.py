"""Exp, Sigmoid, Tanh, Erf and Gelu of float32: the steps of F41 in fractions, the stated error, and kernels of every
width."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.native import OBJECTS
from helpers.support import assert_equal, node_model
from helpers.widths import every_width
from oracle import polynomials as oracle

import qrun
from qrun.formulas import single
from qrun.ops import _functions

F = np.float32
WIDE: dict[str, Any] = {
    "Exp": np.exp,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Erf": _functions.erf,
    "Gelu": lambda x: 0.5 * x * _functions.erfc(x * -np.sqrt(0.5)),
}
MADE = {name: partial(_functions.in_single, getattr(single, name.lower())) for name in WIDE}
MOST = {"Exp": 0.98, "Sigmoid": 1.73, "Tanh": 1.20, "Erf": 1.53, "Gelu": 6.3}
"""Units in the last place, over all float32 numbers."""
EDGES = np.array([0, 2.0**-149, 2.0**-126, 0.3465735, 0.34657362, 0.625, 9.01, 10, 16.6, 40, 87.33655, 88.72284, 90, 103.97,
                  104.1, 105, 1.125, 3.9375, 13.1484375, 3e38, np.inf, np.nan], F)  # fmt: skip


def numbers(seed: int, count: int) -> np.ndarray:
    """Edges and their neighbours, numbers of every exponent, and numbers of a size that matters, of both signs."""
    rng = np.random.default_rng(seed)
    near = [EDGES, np.nextafter(EDGES, F(0)), np.nextafter(EDGES, F(np.inf))]
    every = rng.integers(0, 2**31, count, dtype=np.uint32).view(F)
    sized = np.ldexp(rng.uniform(1, 2, count), rng.integers(-20, 7, count)).astype(F)
    made = np.concatenate([*near, every, sized])
    return np.concatenate([made, -made])


@pytest.mark.parametrize("op", WIDE)
def test_steps_in_fractions(op: str) -> None:
    x = numbers(1, 150)
    x = x[np.isfinite(x) & (np.abs(x) < 88)]
    want = np.array([float(getattr(oracle, op.lower())(Fraction(float(v)))) for v in x]).astype(F)
    assert_equal(MADE[op](x), want, signed_zeros=False)


@pytest.mark.parametrize("op", WIDE)
def test_stated_error(op: str) -> None:
    x = numbers(2, 100000)
    x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        real = WIDE[op](x.astype(np.float64))
        made = MADE[op](x)
        unit = np.ldexp(1.0, np.maximum(np.frexp(real)[1], -125) - 24)
        whole = real < float(np.finfo(F).max)
        whole &= (op != "Gelu") | (np.abs(real) >= 2.0**-126)
        assert (np.abs(made - real)[whole] <= (MOST[op] * unit)[whole]).all()
    assert (made[(real > 3.5e38) & (x > 88.73)] == np.inf).all()


@every_width
@pytest.mark.parametrize("op", WIDE)
def test_kernels(isa: str, op: str) -> None:
    x = numbers(3, 3000)
    with np.errstate(all="ignore"):
        want = MADE[op](x)
    model, feeds = node_model(op, [x], {}, opset=20, outputs=[F])
    session = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS)
    assert session.execute(feeds).events[0].backend == "native"
    (got,) = session.run(feeds).values()
    assert (got.view(np.uint32) == want.view(np.uint32)).all()
    assert (got[np.isnan(x)].view(np.uint32) == 0x7FC00000).all()
