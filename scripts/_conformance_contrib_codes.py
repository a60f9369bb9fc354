"""Cases of QuantizeLinear and DequantizeLinear of com.microsoft with 16, 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_contrib import contrib, f16, f32, i32, u8
from _conformance_contrib_sizes import LENGTHS
from oracle import quantize as oracle

from qrun.conform.suite import EITHER

INTEGERS: dict[str, tuple[Any, int, int, str]] = {
    "uint16": (np.uint16, 0, 65535, "Q1/16"),
    "int16": (np.int16, -32768, 32767, "Q1/16"),
    "uint4": (ml_dtypes.uint4, 0, 15, "Q8"),
    "int4": (ml_dtypes.int4, -8, 7, "Q8"),
    "uint8": (np.uint8, 0, 255, "Q1"),
    "int8": (np.int8, -128, 127, "Q1"),
}
"""Type, least and greatest code, and the section about quantizing to them."""


def drawn(rng: Rng, name: str, shape: tuple[int, ...]) -> Any:
    kind, low, high, _ = INTEGERS[name]
    return np.asarray(rng.integers(low, high + 1, shape)).astype(kind)


def numbers(rng: Rng, name: str, shape: tuple[int, ...], scale: Any) -> Any:
    """Numbers of which some lie beyond the codes."""
    _, low, high, _ = INTEGERS[name]
    return (rng.uniform(-1.2, 1.2, shape) * (high - low) * np.asarray(scale, np.float64)).astype(f32)


@family("ms.quantizelinear-1/bits")
def quantize(rng: Rng) -> Iterator[Draft]:
    for draft in quantizations(rng):
        if not same_quotients(draft):
            draft.clause = "Q1/open"
        yield draft


def same_quotients(draft: Draft) -> bool:
    """Does every type in which one might divide give the same codes?"""
    x, scale, zero = (*draft.inputs, None)[:3]
    target, axis = np.dtype(u8) if zero is None else zero.dtype, draft.attributes.get("axis", 1)
    made = [
        oracle.quantize_linear(x, scale, zero, target, axis=axis, division=kind).tobytes()
        for kind in ("real", "float32", scale.dtype.name)
    ]
    return made.count(made[0]) == 3


def quantizations(rng: Rng) -> Iterator[Draft]:
    for name, (kind, low, high, clause) in INTEGERS.items():
        scale = f32(np.exp(rng.normal(-3, 0.7)))
        odd = np.asarray((low + high) // 2 | 1).astype(kind)
        ties = np.asarray([-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5], f32)
        ends = np.asarray([-1e30, low - 0.5, high + 0.5, 1e30, -0.0, 0.0], f32)
        for number in range(2):
            x = numbers(rng, name, (3, 5), scale)
            yield contrib(f"{name}-{number}", "QuantizeLinear", [x, scale, drawn(rng, name, ())], clause)
        yield contrib(f"{name}-ties-odd-zero", "QuantizeLinear", [ties, f32(1), odd], clause)
        yield contrib(
            f"{name}-ties-scale-8", "QuantizeLinear", [ties * 8, f32(8), np.asarray(low + 3).astype(kind)], clause
        )
        yield contrib(f"{name}-ends", "QuantizeLinear", [ends, f32(1), np.asarray(0).astype(kind)], clause)
        infinite = np.asarray([np.inf, -np.inf, 2], f32)
        yield contrib(f"{name}-infinite", "QuantizeLinear", [infinite, f32(1), odd], "G4/infinite")
        for axis in (0, 1, 2, -1):
            scales = np.exp(rng.normal(-3, 0.7, (2, 3, 4)[axis])).astype(f32)
            shaped = scales.reshape([-1 if at == axis % 3 else 1 for at in range(3)])
            yield contrib(f"{name}-axis-{axis % 3}{'-from-end' if axis < 0 else ''}", "QuantizeLinear",
                          [numbers(rng, name, (2, 3, 4), shaped), scales, drawn(rng, name, scales.shape)],
                          "Q4" if clause != "Q8" else "Q8", {"axis": axis})  # fmt: skip
        if clause != "Q1/16":
            x = numbers(rng, name, (2, 9), 0.37).astype(f16)
            yield contrib(f"{name}-float16", "QuantizeLinear", [x, f16(0.37), drawn(rng, name, ())], clause)
    for n, name in product(LENGTHS, ("uint16", "int8", "int4")):
        scale = f32(np.exp(rng.normal(-3, 0.7)))
        yield contrib(f"{name}-{n}-elements", "QuantizeLinear", [numbers(rng, name, (n,), scale), scale, drawn(rng, name, ())],
                      INTEGERS[name][3])  # fmt: skip
    for number in range(2):
        yield contrib(
            f"without-zero-point-{number}", "QuantizeLinear", [numbers(rng, "uint8", (9,), 0.1), f32(0.1)], "G12"
        )
    yield contrib("scale-per-index-without-axis", "QuantizeLinear",
                  [numbers(rng, "uint8", (2, 3), 0.1), np.asarray([0.1, 0.2, 0.3], f32), np.asarray([1, 2, 3], u8)], "Q9",
                  profile="lenient", expects=EITHER)  # fmt: skip


@family("ms.dequantizelinear-1/bits")
def dequantize(rng: Rng) -> Iterator[Draft]:
    for name, (kind, low, high, clause) in INTEGERS.items():
        scale = f32(np.exp(rng.normal(-3, 0.7)))
        yield contrib(
            name, "DequantizeLinear", [drawn(rng, name, (3, 5)), scale, drawn(rng, name, ())], "D1", outputs=[f32]
        )
        yield contrib(
            f"{name}-without-zero-point", "DequantizeLinear", [drawn(rng, name, (9,)), scale], "G12", outputs=[f32]
        )
        ends = np.asarray([low, high, low, high]).astype(kind)
        for end in (low, high):
            yield contrib(f"{name}-zero-point-{end}", "DequantizeLinear", [ends, scale, np.asarray(end).astype(kind)], "D1",
                          outputs=[f32])  # fmt: skip
        for axis in (0, 1, -1):
            scales = np.exp(rng.normal(-3, 0.7, (2, 3, 4)[axis])).astype(f32)
            yield contrib(f"{name}-axis-{axis % 3}{'-from-end' if axis < 0 else ''}", "DequantizeLinear",
                          [drawn(rng, name, (2, 3, 4)), scales, drawn(rng, name, scales.shape)], "Q4", {"axis": axis},
                          outputs=[f32])  # fmt: skip
        yield contrib(f"{name}-float16", "DequantizeLinear", [drawn(rng, name, (9,)), f16(0.37 if high < 999 else 0.037), drawn(rng, name, ())],
                      "D1/half" if clause == "Q1/16" else "D1", outputs=[f16])  # fmt: skip
    for n, name in product(LENGTHS, ("int16", "uint8", "uint4")):
        inputs = [drawn(rng, name, (n,)), f32(np.exp(rng.normal(-3, 0.7))), drawn(rng, name, ())]
        yield contrib(f"{name}-{n}-elements", "DequantizeLinear", inputs, "D1", outputs=[f32])
    small, wide = (
        np.asarray([-70000, -1, 0, 5, 16777215], i32),
        np.asarray([2**31 - 1, -(2**31), 16777217, 123456789], i32),
    )
    yield contrib("int32", "DequantizeLinear", [small, f32(0.0123)], "D1", outputs=[f32])
    yield contrib("int32-wide", "DequantizeLinear", [wide, f32(0.0123)], "D1/int32", outputs=[f32])
    yield contrib(
        "int32-zero-point", "DequantizeLinear", [wide, f32(0.0123), np.asarray(-77, i32)], "D1/int32", outputs=[f32]
    )
