"""Cases of the pools and quantizers of com.microsoft."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_contrib import BOTH, contrib, f32, odd
from _conformance_conv import TYPES, codes, some_scale, zero


@family("ms.qlinearaveragepool-1/windows")
def average_pool(rng: Rng) -> Iterator[Draft]:
    windows: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "1d": ((6,), {"kernel_shape": [3]}),
        "2d": ((4, 5), {"kernel_shape": [2, 2]}),
        "2d-pads": ((4, 5), {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2]}),
        "2d-pads-counted": ((4, 5), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        "2d-strides": ((5, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        "2d-ceil": ((5, 7), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
        "2d-ceil-beyond": ((5, 6), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
        "2d-same-upper": ((4, 5), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
        "2d-same-lower": ((4, 5), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
        "3d": ((3, 3, 3), {"kernel_shape": [2, 2, 2]}),
    }
    for sign, (name, (size, attributes)), ties in product(BOTH, windows.items(), (False, True)):
        kind = TYPES[sign]
        clause = {"2d-ceil": "P1/ceil", "2d-ceil-beyond": "P1/beyond"}.get(name, "C4" if "same" in name else "P1")
        s = f32(0.5) if ties else some_scale(rng)
        z = zero(rng, kind)
        yield contrib(f"{name}{'-equal-scales-odd-zero' if ties else ''}-{sign}", "QLinearAveragePool",
                      [codes(rng, kind, (1, 2, *size)), s, z, s if ties else some_scale(rng), odd(rng, kind) if ties else zero(rng, kind)], "G1" if ties and clause == "P1" else clause, attributes)  # fmt: skip
        if ties and "2d" in name:
            yield contrib(f"{name}-channels-last-{sign}", "QLinearAveragePool", [codes(rng, kind, (1, *size, 2)), f32(0.125), z, f32(0.125), zero(rng, kind)], clause,
                          {**attributes, "channels_last": 1})  # fmt: skip
    for sign in BOTH:
        kind = TYPES[sign]
        yield contrib(
            f"far-beyond-{sign}",
            "QLinearAveragePool",
            [np.full((1, 1, 4), 100, kind), f32(1e10), kind(0), f32(1), kind(0)],
            "G4",
            {"kernel_shape": [2], "strides": [2]},
        )
        yield contrib(
            f"without-zero-points-{sign}",
            "QLinearAveragePool",
            [codes(rng, kind, (1, 1, 4, 4)), f32(0.125), None, f32(0.125), None],
            "G12",
            {"kernel_shape": [2, 2]},
        )


@family("ms.qlinearglobalaveragepool-1/sizes")
def global_average_pool(rng: Rng) -> Iterator[Draft]:
    for sign, size, last, ties in product(BOTH, ((4,), (2, 2), (3, 5), (2, 2, 2)), (0, 1), (False, True)):
        kind = TYPES[sign]
        shape = (2, *size, 3) if last else (2, 3, *size)
        s = f32(0.5) if ties else some_scale(rng)
        yield contrib(f"{'x'.join(map(str, size))}{'-channels-last' if last else ''}{'-ties' if ties else ''}-{sign}", "QLinearGlobalAveragePool",
                      [codes(rng, kind, shape), s, zero(rng, kind), s if ties else some_scale(rng), odd(rng, kind) if ties else zero(rng, kind)],
                      "P2/last" if last else "P2", {"channels_last": last})  # fmt: skip


@family("ms.nhwcmaxpool-1/windows")
def nhwc_max_pool(rng: Rng) -> Iterator[Draft]:
    for sign, (name, attributes) in product(BOTH, (("plain", {"kernel_shape": [2, 2]}), ("pads", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
                                                   ("strides", {"kernel_shape": [2, 2], "strides": [2, 2]}), ("all-least", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}))):  # fmt: skip
        kind = TYPES[sign]
        x = codes(rng, kind, (1, 4, 5, 2)) if name != "all-least" else np.full((1, 4, 4, 1), np.iinfo(kind).min, kind)
        yield contrib(f"{name}-{sign}", "NhwcMaxPool", [x], "P3", attributes)


@family("ms.quantizelinear-1/types")
def quantize(rng: Rng) -> Iterator[Draft]:
    for sign, number in product(BOTH, range(3)):
        kind = TYPES[sign]
        scale = some_scale(rng)
        x = (rng.uniform(-200, 200, (3, 5)) * float(scale)).astype(f32)
        yield contrib(f"{sign}-{number}", "QuantizeLinear", [x, scale, zero(rng, kind)], "Q1")
        ties = (np.floor(rng.uniform(-100, 100, (3, 5))) + 0.5).astype(f32)
        yield contrib(f"{sign}-ties-{number}", "QuantizeLinear", [ties, f32(1), odd(rng, kind)], "G1")
        scales = some_scale(rng, (5,))
        yield contrib(
            f"{sign}-axis-{number}",
            "QuantizeLinear",
            [(rng.uniform(-200, 200, (3, 5)) * scales).astype(f32), scales, zero(rng, kind, (5,))],
            "Q4",
            {"axis": 1},
        )
        yield contrib(
            f"{sign}-dequantize-{number}", "DequantizeLinear", [codes(rng, kind, (3, 5)), scale, zero(rng, kind)], "D1"
        )
        yield contrib(
            f"{sign}-dequantize-axis-{number}",
            "DequantizeLinear",
            [codes(rng, kind, (3, 5)), scales, zero(rng, kind, (5,))],
            "Q4",
            {"axis": 1},
        )
