"""Cases of the integer products of com.microsoft, with lengths around those of vectors and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import OPEN_SUMS, Draft, Rng, family
from _conformance_contrib import BOTH, contrib, f16, f32, i8, i32, u8
from _conformance_conv import TYPES, codes, some_scale, zero

SHAPES = ((1, 1, 1), (1, 3, 7), (2, 4, 8), (3, 5, 9), (1, 7, 15), (2, 8, 16), (4, 9, 17), (1, 15, 31), (5, 16, 3), (2, 17, 33),
          (8, 31, 2), (1, 32, 64), (3, 33, 5), (1, 63, 8), (2, 64, 4), (7, 65, 3), (1, 127, 5), (2, 129, 3), (1, 256, 4), (2, 600, 2))  # fmt: skip
"""M, K and N."""


def matrices(rng: Rng, a_type: Any, b_type: Any, m: int, k: int, n: int) -> tuple[Any, Any]:
    """Codes; each row of a large B is that before it, moved by one place, so that the archive stays small."""
    a, b = codes(rng, a_type, (m, k)), codes(rng, b_type, (k, n))
    if k * n > 250:
        row = codes(rng, b_type, (k + n,))
        b = np.stack([row[at : at + n] for at in range(k)])
    return a, b


@family("ms.qgemm-1/sizes")
def gemm(rng: Rng) -> Iterator[Draft]:
    for pair, (number, (m, k, n)) in product(("uu", "us", "ss"), enumerate(SHAPES)):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        a, b = matrices(rng, at, bt, m, k, n)
        column, bias, ta, tb = number % 3 == 1, number % 2, number % 4 == 2, number % 4 == 3
        sa, sb = some_scale(rng), some_scale(rng, (n,) if column else ())
        c = rng.integers(-3000, 3000, (n,)).astype(i32) if bias else None
        ys = f32(float(sa) * float(np.mean(sb)) * 60 * k**0.5)
        inputs = [
            a.T if ta else a,
            sa,
            zero(rng, at),
            b.T if tb else b,
            sb,
            zero(rng, bt, sb.shape),
            c,
            ys,
            zero(rng, at),
        ]
        attributes = {"transA": int(ta), "transB": int(tb), "alpha": 1.0}
        yield contrib(f"{m}x{k}x{n}-{pair}", "QGemm", inputs, "M3", attributes)
        if number % 3 == 0:
            within = float(OPEN_SUMS * (k * 65025 + 3000) * sa * np.max(sb))
            yield contrib(f"float-{m}x{k}x{n}-{pair}", "QGemm", inputs[:7], "M4", attributes, within=within)


@family("ms.matmulintegertofloat-1/sizes")
def to_float(rng: Rng) -> Iterator[Draft]:
    for pair, (number, (m, k, n)) in product(("uu", "us", "ss"), enumerate(SHAPES)):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        a, b = matrices(rng, at, bt, m, k, n)
        sa, sb = some_scale(rng), some_scale(rng, (n,) if number % 2 else ())
        bias = rng.normal(0, 1, n).astype(f32) if number % 3 == 1 else None
        yield contrib(f"{m}x{k}x{n}-{pair}", "MatMulIntegerToFloat", [a, b, sa, sb, zero(rng, at), zero(rng, bt, sb.shape), bias],
                      "M5", within=float(OPEN_SUMS * (k * 65025 * sa * np.max(sb) + 8)))  # fmt: skip
    for pair, places in product(("uu", "ss"), ((4,), (5,), (4, 5))):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        inputs: list[Any] = [
            codes(rng, at, (3, 9)),
            codes(rng, bt, (9, 5)),
            f32(0.02),
            f32(0.03),
            zero(rng, at),
            zero(rng, bt),
        ]
        for place in places:
            inputs[place] = None
        yield contrib(f"without-zero-points-{'-'.join(map(str, places))}-{pair}", "MatMulIntegerToFloat", inputs, "G12",
                      within=float(OPEN_SUMS * 9 * 65025 * 6e-4))  # fmt: skip
    for pair in ("uu", "us", "ss"):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        inputs = [codes(rng, at, (3, 17)), codes(rng, bt, (17, 4)), f16(0.002), rng.uniform(0.001, 0.004, 4).astype(f16),
                  zero(rng, at), zero(rng, bt, (4,)), rng.normal(0, 1, 4).astype(f16)]  # fmt: skip
        yield contrib(
            f"float16-{pair}", "MatMulIntegerToFloat", inputs, "M5", within=float(2.0**-9 * 17 * 65025 * 8e-6)
        )


@family("ms.dynamicquantizematmul-1/sizes")
def dynamic(rng: Rng) -> Iterator[Draft]:
    for sign, (number, (m, k, n)) in product(BOTH, enumerate(SHAPES)):
        bt = TYPES[sign]
        _, b = matrices(rng, u8, bt, m, k, n)
        sb = some_scale(rng, (n,) if number % 2 else ())
        a = (rng.integers(-128, 128, (m, k)) * f32(0.0371)).astype(f32)
        bias = rng.normal(0, 1, n).astype(f32) if number % 3 == 1 else None
        reach = float(OPEN_SUMS * (k * 255 * 10 * np.max(sb) + 8))
        yield contrib(
            f"{m}x{k}x{n}-{sign}",
            "DynamicQuantizeMatMul",
            [a, b, sb, zero(rng, bt, sb.shape), bias],
            "M5",
            within=reach,
        )
    for name, low, high in (("positive", 1, 9), ("negative", -9, -1), ("wide", -1e6, 1e6), ("narrow", -1e-6, 1e-6)):
        a = rng.uniform(low, high, (2, 9)).astype(f32)
        reach = float(OPEN_SUMS * 9 * 255 * max(abs(low), abs(high)) * 2)
        yield contrib(
            f"range-{name}", "DynamicQuantizeMatMul", [a, codes(rng, i8, (9, 5)), f32(0.02), i8(3)], "M5", within=reach
        )


WORDS = {"u": np.uint16, "s": np.int16}


@family("ms.matmulinteger16-1/sums")
def words(rng: Rng) -> Iterator[Draft]:
    def some(kind: Any, shape: tuple[int, ...], most: int) -> Any:
        return rng.integers(0 if kind is np.uint16 else -most, most + 1, shape).astype(kind)

    def yielded(label: str, pair: str, a: Any, b: Any, clause: str) -> Draft:
        return contrib(
            f"{label}-{pair}", "MatMulInteger16", [a, b], "G7/unsigned" if pair == "uu" and clause == "G7" else clause
        )

    for pair, (m, k, n) in product(("ss", "us", "su", "uu"), SHAPES[::2]):
        most = min(32767, int((2**30 / k) ** 0.5))
        a, b = some(WORDS[pair[0]], (m, k), most), some(WORDS[pair[1]], (k, n), most)
        if k * n > 250:
            b = np.tile(b[:7], (-(-k // 7), 1))[:k]
        yield yielded(f"{m}x{k}x{n}", pair, a, b, "G7")
    for pair in ("ss", "us", "su", "uu"):
        at, bt = WORDS[pair[0]], WORDS[pair[1]]
        most = 9000
        yield yielded("batches", pair, some(at, (2, 3, 7), most), some(bt, (2, 7, 4), most), "G7")
        yield yielded("broadcast", pair, some(at, (2, 1, 3, 5), most), some(bt, (3, 5, 4), most), "G7")
        yield yielded("vector-left", pair, some(at, (9,), most), some(bt, (9, 4), most), "G7")
        yield yielded("vector-right", pair, some(at, (3, 9), most), some(bt, (9,), most), "G7")
        yield yielded(
            "one-greatest-product",
            pair,
            np.full((1, 1), np.iinfo(at).max, at),
            np.full((1, 1), np.iinfo(bt).max, bt),
            "G7",
        )
        yield yielded(
            "wraps", pair, np.full((2, 5), np.iinfo(at).max, at), np.full((5, 3), np.iinfo(bt).max, bt), "G7/wraps"
        )
        yield yielded("wraps-least", pair, np.full((1, 3), np.iinfo(at).min, at), np.full((3, 2), np.iinfo(bt).min, bt),
                      "G7/wraps" if pair == "ss" else "G7")  # fmt: skip
