"""Cases of com.microsoft whose sizes enter the vector paths of a runtime, and leave a rest behind them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import MS, Draft, Rng, family
from _conformance_contrib import BOTH, contrib, f32, i32, u8
from _conformance_conv import TYPES, codes, fitting, some_scale, zero
from _conformance_conv import conv as conv_draft

from qrun.conform.suite import EITHER

LENGTHS = (1, 7, 8, 9, 15, 17, 31, 33, 64, 65, 129)
CHANNELS = (1, 7, 8, 15, 16, 17, 31, 33, 64, 70)
SCALE = {"QLinearAdd": lambda a, b: f32(a + b), "QLinearMul": lambda a, b: f32(a * b * 90)}
CLAUSE = {"QLinearAdd": "E1", "QLinearMul": "E2"}
BROADCASTS = {
    "scalar-on-the-right": ((33,), ()),
    "scalar-on-the-left": ((), (65,)),
    "row": ((3, 17), (17,)),
    "column": ((5, 16), (5, 1)),
    "row-and-column": ((7, 1), (9,)),
    "batches": ((2, 3, 8), (3, 8)),
    "channels": ((2, 7, 2, 3), (7, 1, 1)),
}


def of_two(op: str) -> Any:
    def drafts(rng: Rng) -> Iterator[Draft]:
        shapes = {str(n): ((n,), (n,)) for n in LENGTHS} | BROADCASTS
        for sign, (name, (left, right)) in product(BOTH, shapes.items()):
            kind, scales = TYPES[sign], [some_scale(rng) for _ in range(2)]
            parts = [v for s, shape in zip(scales, (left, right), strict=True)
                     for v in (codes(rng, kind, shape), s, zero(rng, kind))]  # fmt: skip
            out = SCALE[op](*map(float, scales))
            yield contrib(f"{name}-{sign}", op, [*parts, out, zero(rng, kind)], CLAUSE[op])

    return drafts


family("ms.qlinearadd-1/sizes")(of_two("QLinearAdd"))
family("ms.qlinearmul-1/sizes")(of_two("QLinearMul"))


@family("ms.qlinearleakyrelu-1/sizes")
def leaky_relu(rng: Rng) -> Iterator[Draft]:
    for sign, n in product(BOTH, LENGTHS):
        kind = TYPES[sign]
        inputs = [codes(rng, kind, (n,)), some_scale(rng), zero(rng, kind), some_scale(rng), zero(rng, kind)]
        yield contrib(f"{n}-{sign}", "QLinearLeakyRelu", inputs, "E5", {"alpha": float(f32(rng.uniform(0.01, 0.9)))})


@family("ms.qlinearsigmoid-1/sizes")
def sigmoid(rng: Rng) -> Iterator[Draft]:
    for sign, n in product(BOTH, LENGTHS):
        kind = TYPES[sign]
        inputs = [codes(rng, kind, (n,)), some_scale(rng), zero(rng, kind), f32(rng.uniform(0.003, 0.006)), kind(3)]
        yield contrib(f"{n}-{sign}", "QLinearSigmoid", inputs, "E6")


@family("ms.qlinearsoftmax-1/sizes")
def softmax(rng: Rng) -> Iterator[Draft]:
    for sign, n in product(BOTH, LENGTHS):
        kind = TYPES[sign]
        scale = f32(1 / 256 if n > 30 else 0.0037)
        inputs = [codes(rng, kind, (2, n)), f32(0.021), zero(rng, kind), scale, kind(np.iinfo(kind).min)]
        yield contrib(f"{n}-{sign}", "QLinearSoftmax", inputs, "S2", {"opset": 13})


@family("ms.qlinearconcat-1/sizes")
def concat(rng: Rng) -> Iterator[Draft]:
    for sign, (at, n) in product(BOTH, enumerate(LENGTHS)):
        kind, parts = TYPES[sign], []
        for length in (n, 3) if at % 2 else (3, n, 1):
            parts += [codes(rng, kind, (2, length)), some_scale(rng), zero(rng, kind)]
        yield contrib(f"{n}-{sign}", "QLinearConcat", [some_scale(rng), zero(rng, kind), *parts], "E3", {"axis": 1})
    for sign in BOTH:
        kind = TYPES[sign]
        s, z, other = some_scale(rng), zero(rng, kind), some_scale(rng)
        parts = [codes(rng, kind, (3, 5)), s, z, codes(rng, kind, (3, 5)), other, z, codes(rng, kind, (3, 5)), s, z]
        yield contrib(f"equal-parameters-are-copied-{sign}", "QLinearConcat", [s, z, *parts], "E3", {"axis": 0})


@family("ms.qlinearwhere-1/sizes")
def where(rng: Rng) -> Iterator[Draft]:
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {str(n): ((n,),) * 3 for n in LENGTHS}
    shapes |= {"x-scalar": ((17,), (), (17,)), "y-scalar": ((17,), (17,), ()), "condition-scalar": ((), (9,), (9,)),
               "three-shapes": ((3, 1), (7,), (2, 1, 1)), "row-condition": ((8,), (3, 8), (3, 8))}  # fmt: skip
    for sign, (name, (c, x, y)) in product(BOTH, shapes.items()):
        kind = TYPES[sign]
        scales = [some_scale(rng) for _ in range(3)]
        inputs = [rng.random(c) < 0.5, codes(rng, kind, x), scales[0], zero(rng, kind), codes(rng, kind, y), scales[1],
                  zero(rng, kind), scales[2], zero(rng, kind)]  # fmt: skip
        yield contrib(f"{name}-{sign}", "QLinearWhere", inputs, "E4" if name.isdigit() else "E4/broadcast")


@family("ms.qlinearaveragepool-1/sizes")
def average_pool(rng: Rng) -> Iterator[Draft]:
    """Many channels in two images, and rows that are long, both ways of laying them."""
    for sign, n, last in product(BOTH, CHANNELS, (0, 1)):
        kind, shape = TYPES[sign], (2, 3, 2, n) if last else (2, n, 3, 2)
        inputs = [codes(rng, kind, shape), some_scale(rng), zero(rng, kind), some_scale(rng), zero(rng, kind)]
        attributes = {"kernel_shape": [3, 2], "channels_last": last}
        yield contrib(f"{n}-channels{'-last' if last else ''}-{sign}", "QLinearAveragePool", inputs, "P1", attributes)
    for sign, n in product(BOTH, (9, 17, 33, 65)):
        kind = TYPES[sign]
        inputs = [codes(rng, kind, (1, 1, 2, n)), some_scale(rng), zero(rng, kind), some_scale(rng), zero(rng, kind)]
        attributes = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 0, 1]}
        yield contrib(f"{n}-columns-{sign}", "QLinearAveragePool", inputs, "P1", attributes)


@family("ms.qlinearglobalaveragepool-1/lengths")
def global_average_pool(rng: Rng) -> Iterator[Draft]:
    for sign, n in product(BOTH, LENGTHS):
        kind = TYPES[sign]
        inputs = [
            codes(rng, kind, (2, 3, n)),
            some_scale(rng),
            zero(rng, kind),
            some_scale(rng, (), -4),
            zero(rng, kind),
        ]
        yield contrib(f"{n}-elements-{sign}", "QLinearGlobalAveragePool", inputs, "P2", {"channels_last": 0})
    for sign, n, last in product(BOTH, CHANNELS, (0, 1)):
        kind, shape = TYPES[sign], (2, 2, 3, n) if last else (2, n, 2, 3)
        inputs = [codes(rng, kind, shape), some_scale(rng), zero(rng, kind), some_scale(rng, (), -4), zero(rng, kind)]
        yield contrib(f"{n}-channels{'-last' if last else ''}-{sign}", "QLinearGlobalAveragePool", inputs,
                      "P2/last" if last else "P2", {"channels_last": last})  # fmt: skip


MAX_WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "1d": ((9,), {"kernel_shape": [3], "strides": [2]}),
    "dilations": ((5, 6), {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    "ceil": ((5, 7), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    "same-upper": ((4, 5), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "same-lower": ((4, 5), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
    "asymmetric-pads": ((4, 4), {"kernel_shape": [3, 3], "pads": [0, 1, 2, 0]}),
    "3d": ((3, 2, 4), {"kernel_shape": [2, 2, 3]}),
}


@family("ms.nhwcmaxpool-1/sizes")
def max_pool(rng: Rng) -> Iterator[Draft]:
    for sign, n in product(BOTH, CHANNELS):
        x = codes(rng, TYPES[sign], (2, 3, 3, n))
        yield contrib(f"{n}-channels-{sign}", "NhwcMaxPool", [x], "P3", {"kernel_shape": [2, 3], "strides": [2, 1]})
    for sign, (name, (size, attributes)) in product(BOTH, MAX_WINDOWS.items()):
        yield contrib(f"{name}-{sign}", "NhwcMaxPool", [codes(rng, TYPES[sign], (2, *size, 3))], "P3", attributes)


@family("ms.qlinearconv-1/sizes")
def conv(rng: Rng) -> Iterator[Draft]:
    """Channels and filters around the widths of vectors, two images, grouped, and one channel to a group."""
    forms = [(n, m, 1) for n, m in ((1, 8), (7, 9), (8, 16), (16, 3), (17, 5), (33, 4), (70, 2))]
    forms += [(8, 8, 8), (17, 17, 17), (6, 4, 2)]
    for triple, last, (channels, filters, group) in product(("uuu", "usu", "sss"), (0, 1), forms):
        xt, wt, yt = (TYPES[t] for t in triple)
        x, w = codes(rng, xt, (2, channels, 3, 2)), codes(rng, wt, (filters, channels // group, 2, 2))
        xs, ws = some_scale(rng), some_scale(rng, (filters,))
        wz = np.zeros(filters, wt) if wt is not u8 else np.full(filters, 128, wt)
        bias = rng.integers(-2000, 2000, filters).astype(i32)
        ys = fitting(rng, channels // group * 4, xs, ws)
        inputs = [np.moveaxis(x, 1, -1) if last else x, xs, zero(rng, xt), w, ws, wz, ys, zero(rng, yt), bias]
        attributes = {"group": group, "kernel_shape": [2, 2], **({"channels_last": 1} if last else {})}
        label = f"{channels}-to-{filters}{f'-in-{group}-groups' if group > 1 else ''}-{triple}{'-channels-last' if last else ''}"
        yield contrib(label, "QLinearConv", inputs, "C6", attributes)


@family("ms.qlinearconv-1/mixed")
def mixed(rng: Rng) -> Iterator[Draft]:
    """A scale per output channel with one zero point, and the reverse, which QLinearConv of ai.onnx excludes."""
    for triple, forms in product(("uuu", "usu", "sss"), ("tct", "ttc")):
        name = "scales" if forms == "tct" else "zero-points"
        draft = conv_draft(rng, f"{name}-per-channel-{triple}", triple, "2d-asymmetric-pads", forms=forms, domain=MS,
                         version=1, profile="lenient", clause="C2")  # fmt: skip
        draft.expects = EITHER
        yield draft
