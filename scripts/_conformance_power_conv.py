"""Cases of QLinearConv and ConvInteger in sizes of networks: batches, groups with strides and dilations, vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_conv import GEOMETRIES, TYPES, codes, replaced
from _conformance_power import CHANNELS, SIZES, conv_node, patterned
from oracle import sums

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
MIXES = ("uuu", "usu", "sss")
IMAGES = (
    "1d",
    "2d",
    "2d-asymmetric-pads",
    "2d-stride",
    "2d-dilations",
    "2d-same-lower-stride",
    "3d",
    "3d-pads-strides",
)


def clause_of(name: str, other: str = "G3") -> str:
    """The section of numerics.md for a geometry: SAME, padding, or another."""
    return "C4" if "same" in name else "G8" if "pads" in name else other


def batches(rng: Rng, op: str, other: str) -> Iterator[Draft]:
    for (name, types), (batch, per_channel) in zip(
        product(IMAGES, (*MIXES, "suu")), cycle(product((2, 3, 5), (True, False)))
    ):
        size, kernel, attributes = GEOMETRIES[name]
        yield conv_node(rng, f"{name}-{types}-{batch}", types, (batch, 2, *size), (3, 2, *kernel), op=op, per_channel=per_channel,
                        clause=clause_of(name, other), attributes=attributes, exact=batch != 3)  # fmt: skip


def channels(rng: Rng, op: str, other: str, mixes: Sequence[str]) -> Iterator[Draft]:
    for number, (count, types) in enumerate(product(CHANNELS, mixes)):
        yield conv_node(rng, f"1x1-of-{count}-{types}", types, (2, count, 2, 2), (3, count, 1, 1), op=op, clause=other)
        yield conv_node(
            rng,
            f"3x3-of-{count}-{types}",
            types,
            (1, count, 4, 3),
            (2, count, 3, 3),
            op=op,
            clause=other,
            per_channel=count % 2 == 0,
        )
        if number % 2:
            continue
        yield conv_node(
            rng, f"1x1-to-{count}-{types}", types, (1, 3, 1, 2), (count, 3, 1, 1), op=op, clause=other, exact=True
        )
        yield conv_node(rng, f"3x3-to-{count}-{types}", types, (1, 4, 3, 3), (count, 4, 3, 3), op=op, clause=other)  # fmt: skip


def widths(rng: Rng, op: str, other: str, mixes: Sequence[str]) -> Iterator[Draft]:
    for width, types in product(SIZES, mixes):
        yield conv_node(rng, f"1d-{width}-{types}", types, (1, 2, width), (1, 2, 3), op=op, clause="G8", exact=True,
                        attributes={"pads": [1, 1]})  # fmt: skip
        if width > 1:
            yield conv_node(
                rng, f"2d-{width}-{types}", types, (1, 2, 3, width), (2, 2, 3, 2), op=op, clause=other, exact=True
            )


STEPS: dict[str, dict[str, Any]] = {
    "strides": {"strides": 2},
    "dilations": {"dilations": 2},
    "strides-dilations": {"strides": 2, "dilations": 3},
    "strides-pads": {"strides": 3, "pads": (1, 2)},
    "dilations-pads": {"dilations": 2, "pads": (2, 1)},
}


def groups(rng: Rng, op: str, mixes: Sequence[str]) -> Iterator[Draft]:
    """Groups with strides and dilations, which differ between the axes."""
    for (rank, (name, steps), types), group in zip(product((1, 2, 3), STEPS.items(), mixes), cycle((2, 3, 4))):
        kernel = (2, 3, 2)[:rank]
        attributes: dict[str, Any] = {
            k: [v + (at % 2 and k == "strides") for at in range(rank)] for k, v in steps.items() if k != "pads"
        }
        if "pads" in steps:
            attributes["pads"] = [steps["pads"][0]] * rank + [steps["pads"][1]] * rank
        holes = attributes.get("dilations", [1] * rank)
        size = [(k - 1) * h + (3 if rank < 3 else 2) for k, h in zip(kernel, holes, strict=True)]
        yield conv_node(rng, f"{rank}d-{group}-{name}-{types}", types, (2, 2 * group, *size), (3 * group, 2, *kernel), op=op,
                        clause="G8" if "pads" in name else "C2" if op == "QLinearConv" else "G7",
                        attributes={"group": group, **attributes}, exact=rank == 3)  # fmt: skip


def depthwise(rng: Rng, op: str, mixes: Sequence[str]) -> Iterator[Draft]:
    for count, multiplier, stride, types in product((1, 8, 17, 33), (1, 2), (1, 2), mixes):
        yield conv_node(rng, f"{count}-times-{multiplier}-stride-{stride}-{types}", types, (1, count, 4, 5), (count * multiplier, 1, 3, 3), op=op,
                        clause="C2" if op == "QLinearConv" else "G7", attributes={"group": count, "strides": [stride, stride]},
                        exact=count > 8)  # fmt: skip


@family("qlinearconv-10/batch")
def conv_batches(rng: Rng) -> Iterator[Draft]:
    yield from batches(rng, "QLinearConv", "G3")


@family("qlinearconv-10/channels")
def conv_channels(rng: Rng) -> Iterator[Draft]:
    yield from channels(rng, "QLinearConv", "G3", MIXES)


@family("qlinearconv-10/widths")
def conv_widths(rng: Rng) -> Iterator[Draft]:
    yield from widths(rng, "QLinearConv", "G3", ("usu", "sss"))


@family("qlinearconv-10/group-steps")
def conv_groups(rng: Rng) -> Iterator[Draft]:
    yield from groups(rng, "QLinearConv", MIXES)


@family("qlinearconv-10/depthwise")
def conv_depthwise(rng: Rng) -> Iterator[Draft]:
    yield from depthwise(rng, "QLinearConv", ("uuu", "sss"))


@family("convinteger-10/batch")
def integer_batches(rng: Rng) -> Iterator[Draft]:
    yield from batches(rng, "ConvInteger", "G7")


@family("convinteger-10/channels")
def integer_channels(rng: Rng) -> Iterator[Draft]:
    yield from channels(rng, "ConvInteger", "G7", ("usu",))


@family("convinteger-10/widths")
def integer_widths(rng: Rng) -> Iterator[Draft]:
    yield from widths(rng, "ConvInteger", "G7", ("uuu",))


@family("convinteger-10/group-steps")
def integer_groups(rng: Rng) -> Iterator[Draft]:
    yield from groups(rng, "ConvInteger", ("usu", "ssu"))


@family("convinteger-10/depthwise")
def integer_depthwise(rng: Rng) -> Iterator[Draft]:
    yield from depthwise(rng, "ConvInteger", ("usu",))


@family("convinteger-10/large-sums")
def integer_sums(rng: Rng) -> Iterator[Draft]:
    """Sums beyond 2^24, of which float32 loses bits, and pairs beyond int16."""
    for pair, count, group in product(("uu", "us", "ss"), (600, 1201), (1, 2)):
        x = patterned(rng, TYPES[pair[0]], (2, count * group, 1, 2))
        w = patterned(rng, TYPES[pair[1]], (2 * group, count, 1, 1))
        x[0], w[0] = np.iinfo(x.dtype).max, np.iinfo(w.dtype).max
        zeros = TYPES[pair[0]](np.iinfo(x.dtype).min), TYPES[pair[1]](np.iinfo(w.dtype).min)
        given = {"group": group} if group > 1 else {}
        yield Draft(f"{count}-{group}-{pair}", "ConvInteger", [x, w, *zeros], given, clause="G7")
        yield Draft(
            f"{count}-{group}-{pair}-zero-points-0",
            "ConvInteger",
            [x, w, zeros[0] * 0, zeros[1] * 0],
            given,
            clause="G7",
        )


def aimed(
    rng: Rng, id: str, types: str, targets: Sequence[int], scales: tuple[Any, Any, Any], clause: str, depth: int = 9
) -> Draft:
    """A QLinearConv of one pixel whose sums are these targets: the bias makes up the difference."""
    xt, wt, yt = (TYPES[t] for t in types)
    x, w = patterned(rng, xt, (1, depth, 1, 1)), patterned(rng, wt, (len(targets), depth, 1, 1))
    info = np.iinfo(yt)
    xz = codes(rng, xt, ())
    acc = sums.conv(x, w, int(xz), [0] * len(targets), None).reshape(-1).astype(np.int64)
    bias = (np.array(targets, np.int64) - acc).astype(i32)
    yz = np.asarray((info.min + info.max) // 2 | 1, yt)
    xs, ws, ys = (f32(s) for s in scales)
    return Draft(id, "QLinearConv", [x, xs, xz, w, ws, wt(0), ys, yz, bias], {}, clause=clause)


@family("qlinearconv-10/beside-ties")
def beside_ties(rng: Rng) -> Iterator[Draft]:
    """Sums one beside a tie: two roundings, as of a doubled high product and a shift, meet at the tie."""
    for shift, types in product((3, 5, 8, 10, 12, 15, 17), MIXES):
        ties = (2 * rng.integers(-50, 50, 24) + 1) * 2 ** (shift - 1)
        yield aimed(
            rng,
            f"2-to-{shift}-{types}",
            types,
            (ties + rng.choice([-1, 1], 24)).tolist(),
            (0.5, 0.5, 2.0 ** (shift - 2)),
            "G3",
        )
        yield aimed(rng, f"2-to-{shift}-ties-{types}", types, ties.tolist(), (0.5, 0.5, 2.0 ** (shift - 2)), "G1")


@family("qlinearconv-10/ladder")
def ladder(rng: Rng) -> Iterator[Draft]:
    """Ratios of scales 2^-n beside a power of two: a multiplier of fewer bits is that power, and rounds a tie."""
    for bits, types, sign in product((6, 8, 10, 13, 14, 15, 16, 17, 20, 23), ("uuu", "sss"), (1, -1)):
        ties = (2 * rng.integers(-50, 50, 24) + 1) * 2**7
        x_scale = 1 + sign * 2.0**-bits / (2 if sign < 0 else 1)
        yield aimed(
            rng,
            f"{bits}-bits-{'above' if sign > 0 else 'below'}-{types}",
            types,
            ties.tolist(),
            (x_scale, 2.0**-8, 1),
            "G3",
        )


RUNGS = ((1, 1), (1, 3), (2, 2), (5, 7), (100, 300), (1000, -1000), (-1, 3), (-50, 50))
"""Factors a and b of scales 1 + a / 2^23, 1 + b / 2^23 and 1 + (a + b) / 2^23, whose ratio is 1 + a b / 2^46."""


def rung(a: int, b: int) -> tuple[float, float, float]:
    """Scales of x, w and y with a ratio so near 2^-8 that float32 takes it for that."""
    return 1 + a * 2.0**-23, (1 + b * 2.0**-23) * 2.0**-8, 1 + (a + b) * 2.0**-23


@family("qlinearconv-10/float32-scales")
def float32_scales(rng: Rng) -> Iterator[Draft]:
    """Sums that are ties but for the last bits of the ratio of scales, which a float32 multiplier has lost."""
    for (a, b), types in product(RUNGS, ("uuu", "sss")):
        ties = (2 * rng.integers(-50, 50, 24) + 1) * 2**7
        yield aimed(rng, f"{a}-{b}-{types}".replace("--", "-minus-"), types, ties.tolist(), rung(a, b), "G3")


@family("qlinearconv-10/bias")
def biases(rng: Rng) -> Iterator[Draft]:
    """Sums that wrap in int32 for one or all channels, and biases that count more than the sum."""
    top = 2**31
    for types, depth in product(("uuu", "usu", "sss", "suu"), (9, 64)):
        draft = aimed(rng, f"wraps-{depth}-{types}", types, [0] * 8, (0.5, 0.5, 2.0**23), "G7", depth)
        ends = np.array([top - 1, -top, top - 3, 2 - top, top - 1, -top, top // 2, -top // 2], np.int64)
        yield replaced(draft, i8=ends.astype(i32))
        wide = (rng.integers(-(2**27), 2**27, 17) // 2**12 * 2**12 + 1).tolist()
        yield aimed(rng, f"beyond-2-to-24-{depth}-{types}", types, wide, (0.5, 0.25, 2.0**17), "G3", depth)


@family("qlinearconv-10/int16-pairs")
def pairs(rng: Rng) -> Iterator[Draft]:
    """Pairs of products beyond int16, in depths that fill vectors and do not."""
    for depth, types in product((2, 4, 16, 17, 32, 65), ("usu", "uss")):
        x = np.where(rng.random((2, depth, 1, 2)) < 0.8, 255, 3).astype(u8)
        w = np.where(rng.random((3, depth, 1, 1)) < 0.5, 127, -128).astype(i8)
        w[0], w[1] = 127, -128
        ys = f32(2.0 ** int(6 + np.log2(depth)))
        yield Draft(
            f"{depth}-{types}",
            "QLinearConv",
            [x, f32(0.25), u8(0), w, f32(0.25), i8(0), ys, TYPES[types[2]](9)],
            {},
            clause="G3",
        )


@family("qlinearconv-10/padding")
def padding(rng: Rng) -> Iterator[Draft]:
    """More pads at one side than at the other, x zero points at an end: the code of padding and its side show."""
    for (number, types), last in product(enumerate(MIXES), (False, True)):
        xt = TYPES[types[0]]
        for name, pads, shape in (
            ("begin", [2, 3, 0, 0], (2, 3, 2, 3)),
            ("end", [0, 0, 2, 1], (2, 3, 3, 2)),
            ("both", [1, 2, 2, 1], (3, 3, 2, 2)),
        ):
            draft = conv_node(rng, f"{name}-{'greatest' if last else 'least'}-{types}", types, shape, (2, 3, 2, 2), clause="G8",
                              attributes={"pads": pads, "strides": [1, 1 + number % 2]}, exact=True)  # fmt: skip
            info = np.iinfo(xt)
            yield replaced(draft, i2=np.asarray(info.max if last else info.min, xt))
