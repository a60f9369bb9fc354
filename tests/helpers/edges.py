"""The edge sizes with which every kernel is tested: a table for each, in which the rest of every vector occurs.

Which instruction sets a table runs on is said at the test: `every_isa` all of it, `thin` a share of it on each.
"""

from __future__ import annotations

from typing import Any

Shape = tuple[int, ...]
Convolution = tuple[Shape, Shape, dict[str, Any]]

DEPTHWISE: list[Convolution] = [
    ((3, 3), (5, 4), {"pads": (1, 0, 1, 1)}),
    ((1, 2), (1, 6), {"pads": (0, 0, 1, 1)}),
    ((5, 5), (3, 3), {"pads": (2, 0, 1, 2)}),
    ((2, 2), (2, 2), {"pads": (1, 0, 1, 1)}),
    ((3, 3), (3, 2), {"pads": (1, 1, 1, 1)}),
    ((3, 3), (5, 8), {"pads": (1, 1, 1, 1)}),
    ((2, 3), (7, 6), {"pads": (0, 2, 1, 2), "strides": (2, 1), "dilations": (3, 1)}),
    ((3, 3), (6, 9), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((3, 3), (6, 9), {"pads": (1, 1, 1, 2), "dilations": (1, 2)}),
    ((3,), (12,), {"pads": (1, 1)}),
]
"""Depthwise convolutions of 2 to 144 channels: kernel, image, geometry."""

SUMS: list[Convolution] = [
    ((1, 3, 12, 11), (9, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((2, 8, 5, 6), (20, 8, 1, 1), {}),
    ((1, 64, 8, 7), (64, 1, 3, 3), {"group": 64, "pads": (1, 1, 1, 1)}),
    ((1, 80, 5, 6), (80, 1, 3, 3), {"group": 80, "pads": (1, 0, 1, 2)}),
    ((1, 10, 7, 7), (10, 1, 5, 5), {"group": 10, "pads": (2, 2, 2, 2)}),
    ((1, 16, 5, 5), (32, 4, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ((1, 5, 30), (7, 5, 3), {"pads": (1, 1), "dilations": (2,)}),
    ((1, 130, 4, 4), (70, 130, 3, 3), {"pads": (1, 1, 1, 1)}),
]
"""Convolutions whose int32 sums are results: image, kernel, geometry."""

CLIPPED = [
    ((1, 8, 3, 3), (3, 8, 1, 1), {}),
    ((2, 24, 5, 5), (40, 24, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 67, 6, 6), (17, 67, 1, 1), {"strides": (2, 2)}),
    ((1, 64, 9, 9), (32, 64, 2, 3), {"pads": (0, 2, 1, 0)}),
    ((1, 300, 4, 7), (70, 300, 1, 1), {}),
]
"""Clipped: image, kernel, geometry."""

WIDENED: list[Convolution] = [
    ((1, k, rows), (n, k, 1), {})
    for rows, k, n in (
        (16, 1, 1), (17, 2, 8), (19, 3, 9), (20, 15, 15), (21, 16, 16), (24, 17, 17), (25, 33, 24), (16, 47, 70),
        (23, 48, 129), (40, 200, 31),
    )
]  # fmt: skip
WIDENED += [
    ((2, 3, 9, 9), (24, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 3, 12, 11), (10, 3, 5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 1)}),
    ((2, 5, 6, 6), (17, 5, 2, 3), {"pads": (0, 2, 1, 0)}),
    ((3, 18, 5, 5), (40, 18, 3, 3), {"dilations": (2, 2), "pads": (2, 2, 2, 2)}),
]
"""Widened: every rest of k and n beside vectors of 16 and 32, then windows."""

GROUPED: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (4, 28, 28, (1, 5, 7), (1, 1), {}),
    (4, 34, 34, (2, 5, 5), (1, 1), {}),
    (2, 136, 136, (1, 4, 4), (1, 1), {}),
    (3, 9, 7, (2, 17), (1,), {}),
    (5, 15, 33, (1, 19), (1,), {}),
    (2, 17, 70, (1, 6, 6), (1, 1), {"strides": (2, 1)}),
    (8, 8, 8, (1, 6, 6), (3, 3), {"pads": (1, 1, 1, 1)}),
    (7, 10, 3, (2, 6, 5), (2, 3), {"pads": (0, 2, 1, 0)}),
    (2, 24, 40, (1, 6, 6), (3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    (32, 16, 4, (1, 4, 5), (1, 1), {}),
]
"""Narrow groups: groups, inputs and outputs of each, images and their axes, kernel, geometry."""

GUARDED: list[Convolution] = [
    ((1, 16, 1, 1), (64, 16, 1, 1), {}),
    ((1, 5, 3, 3), (17, 5, 2, 2), {"pads": (1, 0, 0, 1)}),
    ((2, 3, 7, 6), (9, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 1, 9), (1, 1, 4), {}),
    ((3, 20, 2, 3), (12, 5, 1, 1), {"group": 4}),
    ((1, 800, 20), (300, 800, 1), {}),
    ((1, 33, 4, 4), (33, 1, 3, 3), {"group": 33, "pads": (1, 1, 1, 1)}),
    ((2, 7, 3, 3), (7, 1, 2, 2), {"group": 7}),
    ((1, 130, 2, 2), (130, 1, 1, 1), {"group": 130}),
    ((1, 0, 3, 3), (5, 0, 1, 1), {}),
    ((1, 9, 4, 5), (26, 9, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 19, 17), (11, 19, 1), {}),
    ((1, 6, 18), (5, 6, 1), {}),
    ((1, 8, 20), (16, 8, 1), {}),
    ((3, 17, 16), (3, 17, 4), {"strides": (4,)}),
    ((2, 9, 2, 3), (5, 9, 1, 1), {}),
    ((1, 16, 7), (8, 16, 1), {}),
]
"""Convolutions beside pages that must not be touched: image, kernel, geometry."""

FLOAT_CONV: list[Convolution] = [
    ((1, 3, 9, 11), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 3, 12, 10), (17, 3, 5, 4), {"pads": (2, 0, 1, 3), "strides": (2, 3)}),
    ((2, 20, 7, 6), (33, 20, 1, 1), {}),
    ((1, 20, 7, 6), (33, 20, 1, 1), {"strides": (2, 2)}),
    ((2, 16, 6, 7), (12, 16, 3, 3), {"pads": (1, 1, 1, 1), "dilations": (2, 1)}),
    ((1, 150, 5, 5), (9, 150, 2, 2), {}),
    ((2, 12, 6, 5), (8, 3, 3, 3), {"group": 4, "pads": (1, 0, 0, 1)}),
    ((1, 6, 6, 5), (12, 1, 3, 3), {"group": 6}),
    ((2, 21, 8, 7), (21, 1, 3, 3), {"group": 21, "pads": (1, 1, 1, 1)}),
    ((1, 40, 9, 8), (40, 1, 5, 5), {"group": 40, "pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ((1, 5, 3, 3), (5, 1, 3, 3), {"group": 5}),
    ((1, 64, 1, 1), (70, 64, 1, 1), {}),
    ((2, 40, 6, 7), (40, 1, 1, 1), {"group": 40}),
    ((2, 28, 6, 7), (28, 4, 3, 3), {"group": 7, "pads": (1, 1, 1, 1)}),
    ((1, 10, 9, 5), (10, 2, 2, 3), {"group": 5, "strides": (2, 1), "pads": (0, 1, 0, 1)}),
    ((2, 8, 17), (8, 4, 1), {"group": 2}),
    ((3, 9, 30), (4, 9, 5), {"pads": (4, 0), "dilations": (2,)}),
    ((3, 9, 30), (9, 1, 13), {"group": 9, "pads": (6, 6)}),
    ((1, 2, 14, 14), (3, 2, 12, 12), {}),
    ((1, 21, 13, 12), (40, 21, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 266, 9, 8), (18, 133, 3, 2), {"group": 2, "pads": (1, 1, 1, 0)}),
    ((1, 35, 6, 19), (35, 1, 3, 3), {"group": 35, "pads": (0, 2, 1, 0), "dilations": (1, 2)}),
    ((2, 17, 7, 26), (17, 1, 2, 7), {"group": 17, "pads": (1, 4, 0, 3), "strides": (1, 2)}),
]
"""Convolutions of floats: image, kernel, geometry."""

FLOAT_PRODUCTS = (
    (1, 1, 1), (1, 300, 500), (2, 7, 130), (3, 129, 33), (5, 64, 17), (8, 9, 40), (9, 5, 3), (13, 260, 70), (40, 128, 32),
    (70, 31, 100), (150, 385, 9), (129, 4, 64), (300, 3, 2),
)  # fmt: skip
"""Products of floats: m, k, n."""

PRODUCTS = [(1, 1, 1), (4, 3, 16), (5, 64, 17), (6, 65, 33), (2, 0, 5), (7, 52, 100), (3, 16, 1), (0, 4, 3), (2, 5, 0)]
"""Products of codes: m, k, n; 0 among them."""

STACKS: list[tuple[Shape, Shape]] = [
    ((), ()), ((3,), ()), ((), (2,)), ((2, 2), (2, 2)), ((2, 1), (1, 3)), ((1,), (1,)), ((0,), (1,)),
]  # fmt: skip
"""Stacks of such products, left and right."""

STACKED: list[tuple[Shape, Shape]] = [
    ((1, 1), (1, 1)), ((5, 7), (7, 9)), ((2, 6, 33), (2, 33, 17)), ((2, 3, 10, 64), (2, 1, 64, 70)), ((1, 17), (4, 17, 100)),
    ((2, 3, 4, 5), (3, 5, 6)), ((3, 1, 4, 5), (1, 6, 5, 16)), ((2, 1, 2, 3, 8), (1, 2, 1, 8, 20)), ((8,), (8, 3)),
    ((4, 8), (8,)), ((8,), (8,)), ((3, 8), (2, 8, 130)), ((12, 40, 52), (12, 52, 64)), ((3, 30, 4), (4, 24)), ((7, 6), (1, 1, 6, 2)),
]  # fmt: skip
"""Products of two activations in one call, left and right."""

CHANNELS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 96, 127, 128, 129, 200, 272)
"""Pools: around every number of lanes, one and several vectors."""

POOLS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 0]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "strides": [2, 3], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [7, 8]},
    {"kernel_shape": [1, 1], "strides": [3, 3]},
]
"""Windows of pools."""

ROWS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 100, 769)
"""Float rows that are summed: around vectors of 4, 8 and 16, and several of them."""

CODE_ROWS = (1, 2, 3, 10, 255, 256, 1000, 2047, 2048, 5000)
"""Rows of codes: around the number of codes and of what a tile holds."""

QUANTIZED = [
    (), (1,), (7,), (15,), (16,), (17,), (63,), (64,), (65,), (1000,), (3, 0), (2, 3, 5, 7), (1, 17, 33), (2, 65, 4), (1, 1, 300),
]  # fmt: skip
"""Tensors that are quantized: around vectors of 16 and 64 results."""

BROADCASTS = [
    ((7,), (7,)), ((3, 40), (3, 40)), ((2, 3, 40), (40,)), ((2, 3, 40), ()), ((1,), (2, 5, 3)), ((4, 1), (1, 9)),
    ((2, 8, 5, 6), (2, 8, 1, 1)), ((2, 8, 5, 6), (1, 8, 5, 6)), ((2, 8, 5, 6), (8, 1, 1)), ((2, 8, 5, 6), (8, 5, 6)),
    ((2, 1, 5, 6), (1, 8, 1, 1)), ((1, 2, 9, 9), (1, 1, 1, 9)), ((2, 0, 3), (3,)), ((), ()), ((2, 3, 4, 5), (2, 1, 4, 1)),
]  # fmt: skip
"""Operands of elementwise functions, left and right."""

ARRANGED = [
    (1, 1, 1), (1, 2, 2, 2), (1, 3, 5, 7), (2, 3, 4, 16), (1, 4, 3, 17), (1, 5, 33), (2, 8, 15), (1, 15, 8, 4),
    (1, 16, 16), (1, 17, 31), (1, 31, 17), (1, 32, 33), (1, 33, 4, 8), (2, 64, 7, 7), (1, 65, 5, 13), (1, 3, 40, 20),
    (1, 70, 64, 64), (1, 0, 4, 4), (0, 3, 2, 2), (1, 2, 3, 4, 5), (3, 20, 1),
]  # fmt: skip
"""Tensors whose channels become the last axis: around blocks of 8, 16 and 32."""
