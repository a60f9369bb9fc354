"""Resize of one axis in fractions, from the text of ONNX Resize-19."""

from __future__ import annotations

import math
from fractions import Fraction

HALF = Fraction(1, 2)


def place(x: int, length: int, out: int, scale: Fraction, transform: str, roi: tuple[Fraction, Fraction]) -> Fraction:
    if transform == "align_corners":
        return Fraction(x * (length - 1), out - 1) if out > 1 else Fraction(0)
    if transform == "tf_crop_and_resize":
        start, end = roi
        if out > 1:
            return start * (length - 1) + x * (end - start) * (length - 1) / (out - 1)
        return HALF * (start + end) * (length - 1)
    if transform == "asymmetric":
        return x / scale
    if transform == "tf_half_pixel_for_nn":
        return (x + HALF) / scale
    if transform == "pytorch_half_pixel" and out == 1:
        return Fraction(0)
    at = (x + HALF) / scale - HALF
    if transform == "half_pixel_symmetric":
        at += Fraction(length, 2) * (1 - out / (scale * length))
    return at


def nearest(at: Fraction, length: int, mode: str) -> int:
    index = {
        "round_prefer_floor": math.ceil(at - HALF),
        "round_prefer_ceil": math.floor(at + HALF),
        "floor": math.floor(at),
        "ceil": math.ceil(at),
    }[mode]
    return min(max(index, 0), length - 1)


def weights(
    at: Fraction, length: int, scale: Fraction, cubic_a: Fraction | None, antialias: bool, exclude: bool
) -> dict[int, Fraction]:
    """Weight of every input element; cubic_a None: linear."""
    shrink = min(Fraction(1), scale) if antialias else Fraction(1)
    reach = math.ceil((1 if cubic_a is None else 2) / shrink) + 1
    raw: dict[int, Fraction] = {}
    for index in range(math.floor(at) - reach, math.floor(at) + reach + 1):
        t = abs(index - at) * shrink
        raw[index] = max(Fraction(0), 1 - t) if cubic_a is None else keys(t, cubic_a)
    total = sum(raw.values())
    if antialias:
        raw = {index: w / total for index, w in raw.items()}
    if exclude:
        raw = {index: w for index, w in raw.items() if 0 <= index < length}
        inside = sum(raw.values())
        raw = {index: w / inside for index, w in raw.items()} if inside else raw
    found: dict[int, Fraction] = {}
    for index, w in raw.items():
        edge = min(max(index, 0), length - 1)
        found[edge] = found.get(edge, Fraction(0)) + w
    return found


def keys(t: Fraction, a: Fraction) -> Fraction:
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    if t < 2:
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return Fraction(0)
