"""The elementwise operators of integer engines on all codes, against plain integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import engines as oracle

from qrun.arithmetics import ENGINES, Encoding, average_of_codes

CODES = np.arange(-128, 128)
LISTED = CODES.tolist()
KNOWN = [name for name, engine in ENGINES.items() if engine.add]
SETS = [
    (("0.03125", 3), ("0.0625", -7), ("0.125", 5)),
    (("0.017", 3), ("0.041", -30), ("0.052", 11)),
    (("0.25", -128), ("0.0019", 0), ("0.3", -1)),
    (("0.02", 0), ("0.02", 0), ("0.02", 0)),
]


def drawn(index: int) -> list[tuple[np.float32, int]]:
    return [(np.float32(scale), zero) for scale, zero in SETS[index]]


def encoded(tensor: tuple[Any, int]) -> Encoding:
    return Encoding(*tensor)


@pytest.mark.parametrize("index", range(len(SETS)))
@pytest.mark.parametrize("engine", KNOWN)
def test_all_pairs_add_as_in_integers(engine: str, index: int) -> None:
    tensors = drawn(index)
    add = ENGINES[engine].add
    assert add is not None
    got = add(CODES[:, None], CODES[None, :], *map(encoded, tensors))
    assert got.tolist() == oracle.added(engine, LISTED, LISTED, *tensors)


@pytest.mark.parametrize("index", range(len(SETS)))
@pytest.mark.parametrize("engine", [name for name in KNOWN if ENGINES[name].multiply])
def test_all_pairs_multiply_as_in_integers(engine: str, index: int) -> None:
    a, b, y = drawn(index)
    multiply = ENGINES[engine].multiply
    assert multiply is not None
    got = multiply(CODES[:, None], CODES[None, :], encoded(a), encoded(b), encoded(y))
    assert got.tolist() == oracle.multiplied(engine, LISTED, LISTED, a, b, y)


@pytest.mark.parametrize("index", range(len(SETS) - 1))
@pytest.mark.parametrize("engine", [name for name in KNOWN if ENGINES[name].requantize])
def test_codes_get_another_scale_as_in_integers(engine: str, index: int) -> None:
    x, _, y = drawn(index)
    requantize = ENGINES[engine].requantize
    assert requantize is not None
    assert requantize(CODES, encoded(x), encoded(y)).tolist() == oracle.rescaled(engine, LISTED, x, y)


def test_averages_of_codes_go_away_from_zero() -> None:
    rng = np.random.default_rng(5)
    groups = [rng.integers(-128, 128, n).tolist() for n in (1, 2, 3, 4, 9, 49) for _ in range(200)]
    got = average_of_codes(np.array([sum(g) for g in groups]), np.array([len(g) for g in groups]))
    assert got.tolist() == [oracle.averaged(g) for g in groups]
    assert average_of_codes(np.array([-3, 3, -1, 1]), np.array([2, 2, 2, 2])).tolist() == [-2, 2, -1, 1]


def test_scales_far_apart_make_a_sum_of_floats_on_arm() -> None:
    tensors = [(np.float32(1e-7), 0), (np.float32(0.5), 1), (np.float32(0.25), 3)]
    add = ENGINES["ort-arm"].add
    assert add is not None
    assert add(CODES, np.int64(5), *map(encoded, tensors)).tolist() == [8] * 256


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, 1e-45, 3e38])
@pytest.mark.parametrize("engine", KNOWN)
def test_odd_scales_raise_nothing(engine: str, scale: float) -> None:
    odd, plain = Encoding(np.float32(scale), 0), Encoding(np.float32(0.1), 0)
    kernels = ENGINES[engine]
    for rule in (kernels.add, kernels.multiply):
        for operands in ((odd, plain, plain), (plain, plain, odd), (odd, odd, odd)):
            assert rule is None or rule(CODES, CODES, *operands).dtype == np.int64
    for pair in ((odd, plain), (plain, odd)):
        assert kernels.requantize is None or kernels.requantize(CODES, *pair).dtype == np.int64
