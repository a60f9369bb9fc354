"""Cases of the operators of com.microsoft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import MS, OPEN_SUMS, Draft, Rng, family
from _conformance_conv import GEOMETRIES, TYPES, codes, conv, some_scale, zero

f32, f16, u8, i8, i32 = np.float32, np.float16, np.uint8, np.int8, np.int32
BOTH = ("u", "s")


def contrib(
    id: str, op: str, inputs: Sequence[Any], clause: str, attributes: Any = None, profile: str = "contrib", **more: Any
) -> Draft:
    given = [None if value is None else np.asarray(value) for value in inputs]
    return Draft(id, op, given, attributes or {}, 1, MS, profile, clause, **more)


def odd(rng: Rng, kind: Any) -> Any:
    info = np.iinfo(kind)
    return np.asarray(int(rng.integers(info.min // 4, info.max // 4)) * 2 + 1, kind)


PAIRS = {
    "same": ((3, 5), (3, 5)),
    "row": ((3, 5), (5,)),
    "scalar": ((2, 3), ()),
    "both": ((2, 1, 4), (3, 1)),
    "left": ((4,), (2, 3, 4)),
}


def binary(op: str, clause: str) -> Any:
    def drafts(rng: Rng) -> Iterator[Draft]:
        for sign, (name, (sa, sb)) in product(BOTH, PAIRS.items()):
            kind = TYPES[sign]
            a, b = codes(rng, kind, sa), codes(rng, kind, sb)
            s = [some_scale(rng) for _ in range(2)]
            out = f32(float(s[0] + s[1]) if op == "QLinearAdd" else float(s[0]) * float(s[1]) * 90)
            yield contrib(
                f"{name}-{sign}", op, [a, s[0], zero(rng, kind), b, s[1], zero(rng, kind), out, zero(rng, kind)], clause
            )
            ties = [codes(rng, kind, shape, -9, 9) for shape in (sa, sb)]
            zs = [np.asarray(codes(rng, kind, (), -5, 5)) for _ in range(2)]
            yield contrib(
                f"{name}-ties-odd-zero-{sign}",
                op,
                [
                    ties[0],
                    f32(0.5),
                    zs[0],
                    ties[1],
                    f32(0.5),
                    zs[1],
                    f32(1 if op == "QLinearAdd" else 0.5),
                    odd(rng, kind),
                ],
                clause,
            )
            yield contrib(
                f"{name}-fed-{sign}",
                op,
                [a, s[0], zero(rng, kind), b, s[1], zero(rng, kind), out, zero(rng, kind)],
                clause,
                fed=tuple(range(8)),
            )
        for sign, places in product(BOTH, ((2,), (5,), (7,), (2, 5, 7))):
            kind = TYPES[sign]
            inputs: list[Any] = [
                codes(rng, kind, (6,)),
                f32(0.1),
                zero(rng, kind),
                codes(rng, kind, (6,)),
                f32(0.2),
                zero(rng, kind),
                f32(0.3),
                zero(rng, kind),
            ]
            for place in places:
                inputs[place] = None
            yield contrib(f"without-zero-points-{'-'.join(map(str, places))}-{sign}", op, inputs, "G12")
        for sign, (ratio, number) in product(BOTH, ((90, 0), (6, 1), (82, 2))):
            kind, s = TYPES[sign], f32(rng.uniform(0.01, 0.1))
            yield contrib(f"scales-1-to-{ratio}-{sign}", op, [codes(rng, kind, (24,)), s, zero(rng, kind), codes(rng, kind, (24,)), s, zero(rng, kind),
                          f32(float(s) * ratio / 8 if op == "QLinearAdd" else float(s) * float(s) * ratio), odd(rng, kind)], "G3")  # fmt: skip
            yield contrib(f"far-beyond-{number}-{sign}", op, [codes(rng, kind, (8,)), f32(1e9), kind(3), codes(rng, kind, (8,)), f32(10.0**number), kind(3), f32(0.01), kind(5)],
                          "G4", profile="contrib")  # fmt: skip
        yield contrib(
            "no-elements",
            op,
            [np.zeros((0, 3), u8), f32(1), u8(0), np.zeros((3,), u8), f32(1), u8(0), f32(1), u8(7)],
            "G11",
        )

    return drafts


family("ms.qlinearadd-1/sums")(binary("QLinearAdd", "E1"))
family("ms.qlinearmul-1/products")(binary("QLinearMul", "E2"))


@family("ms.qlinearconv-1/layouts")
def conv_layouts(rng: Rng) -> Iterator[Draft]:
    for name, triple, last in product(
        ("1d", "2d-asymmetric-pads", "2d-dilations", "3d"), ("uuu", "usu", "sss"), (0, 1)
    ):
        draft = conv(
            rng,
            f"{name}-{triple}{'-channels-last' if last else ''}",
            triple,
            name,
            forms="tcc",
            domain=MS,
            version=1,
            profile="contrib",
            clause="C6",
        )
        if last:
            draft.inputs = [np.moveaxis(draft.inputs[0], 1, -1), *draft.inputs[1:]]
            draft.attributes = {**draft.attributes, "channels_last": 1}
        yield draft
    assert GEOMETRIES


@family("ms.qgemm-1/forms")
def gemm(rng: Rng) -> Iterator[Draft]:
    for pair, (ta, tb), column, bias in product(
        ("uu", "us", "ss"), ((0, 0), (1, 0), (0, 1)), (False, True), (None, "vector", "matrix")
    ):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        a, b = codes(rng, at, (4, 3) if ta else (3, 4)), codes(rng, bt, (5, 4) if tb else (4, 5))
        sa, sb = some_scale(rng), some_scale(rng, (5,) if column else ())
        zb = zero(rng, bt, (5,) if column else ())
        c = None if bias is None else rng.integers(-3000, 3000, (5,) if bias == "vector" else (3, 5)).astype(i32)
        attributes = {"transA": ta, "transB": tb, "alpha": 1.0}
        label = f"{pair}-{'at' if ta else 'bt' if tb else 'plain'}{'-columns' if column else ''}{f'-{bias}' if bias else ''}"
        ys = f32(float(sa) * float(np.mean(sb)) * 150)
        yield contrib(label, "QGemm", [a, sa, zero(rng, at), b, sb, zb, c, ys, zero(rng, at)], "M3", attributes)
    for pair, bias in product(("uu", "us", "ss"), (None, "vector")):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        c = None if bias is None else rng.integers(-3000, 3000, (5,)).astype(i32)
        inputs = [codes(rng, at, (3, 4)), f32(0.02), zero(rng, at), codes(rng, bt, (4, 5)), f32(0.03), zero(rng, bt), c]
        yield contrib(
            f"float-{pair}{f'-{bias}' if bias else ''}",
            "QGemm",
            inputs,
            "M4",
            within=OPEN_SUMS * (4 * 65025 + 3000) * 6e-4,
        )
        yield contrib(f"no-inner-dimension-{pair}{f'-{bias}' if bias else ''}", "QGemm",
                      [np.zeros((2, 0), at), f32(1), at(0), np.zeros((0, 5), bt), f32(1), bt(0), c, f32(100), at(7)], "G11")  # fmt: skip
        ties = [
            codes(rng, at, (3, 4), -4, 4),
            f32(0.5),
            at(1),
            codes(rng, bt, (4, 5), -4, 4),
            f32(0.5),
            bt(1),
            None if c is None else c % 9,
            f32(0.5),
            odd(rng, at),
        ]
        yield contrib(f"ties-odd-zero-{pair}{f'-{bias}' if bias else ''}", "QGemm", ties, "M3")
    for alpha in (0.5, 2.0, 0.1):
        yield contrib(f"alpha-{alpha:g}", "QGemm", [codes(rng, u8, (2, 3)), f32(0.05), u8(3), codes(rng, u8, (3, 2)), f32(0.05), u8(9),
                      np.array([100, -100], i32), f32(1.3), u8(100)], "M3", {"alpha": alpha})  # fmt: skip


@family("ms.matmulintegertofloat-1/forms")
def to_float(rng: Rng) -> Iterator[Draft]:
    for pair, column, bias, batch in product(("uu", "us", "su", "ss"), (False, True), (False, True), (False, True)):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        a, b = codes(rng, at, (2, 3, 4) if batch else (3, 4)), codes(rng, bt, (2, 4, 5) if batch else (4, 5))
        sb = some_scale(rng, (5,) if column and not batch else ())
        extra = rng.normal(0, 1, 5).astype(f32) if bias else None
        inputs = [a, b, some_scale(rng), sb, zero(rng, at), zero(rng, bt, sb.shape), extra]
        label = f"{pair}{'-columns' if column else ''}{'-bias' if bias else ''}{'-batches' if batch else ''}"
        yield contrib(
            label, "MatMulIntegerToFloat", inputs, "M5", within=float(OPEN_SUMS * 4 * 65025 * inputs[2] * np.max(sb))
        )
    yield contrib(
        "no-inner-dimension-bias",
        "MatMulIntegerToFloat",
        [np.zeros((2, 0), u8), np.zeros((0, 3), u8), f32(1), f32(1), None, None, np.array([1, 2, 3], f32)],
        "G11",
    )
    yield contrib(
        "pairs-beyond-int16",
        "MatMulIntegerToFloat",
        [np.full((1, 4), 255, u8), np.full((4, 1), 127, i8), f32(1), f32(1)],
        "G7",
    )


@family("ms.dynamicquantizematmul-1/forms")
def dynamic_matmul(rng: Rng) -> Iterator[Draft]:
    for sign, column, bias in product(BOTH, (False, True), (False, True)):
        bt = TYPES[sign]
        sb = some_scale(rng, (5,) if column else ())
        a = rng.normal(0, 2, (3, 4)).astype(f32)
        extra = rng.normal(0, 1, 5).astype(f32) if bias else None
        inputs = [a, codes(rng, bt, (4, 5)), sb, zero(rng, bt, sb.shape), extra]
        yield contrib(f"{sign}{'-columns' if column else ''}{'-bias' if bias else ''}", "DynamicQuantizeMatMul", inputs, "M5",
                      within=float(OPEN_SUMS * 4 * 255 * 8 * np.max(sb)))  # fmt: skip
    yield contrib(
        "no-inner-dimension-bias",
        "DynamicQuantizeMatMul",
        [np.zeros((2, 0), f32), np.zeros((0, 3), u8), f32(1), u8(0), np.array([1, 2, 3], f32)],
        "G11",
    )


@family("ms.qlinearconcat-1/parts")
def concat(rng: Rng) -> Iterator[Draft]:
    for sign, axis, count, ties in product(BOTH, (0, 1, -1), (1, 2, 3), (False, True)):
        kind = TYPES[sign]
        parts: list[Any] = []
        for number in range(count):
            shape = [2, 3]
            shape[axis] = number + 2
            scale = f32(2.0 ** (number - 1)) if ties else some_scale(rng)
            parts += [
                codes(rng, kind, shape),
                scale,
                np.asarray(codes(rng, kind, (), -9, 9)) if ties else zero(rng, kind),
            ]
        ys = f32(2.0) if ties else some_scale(rng)
        zy = odd(rng, kind) if ties else zero(rng, kind)
        yield contrib(f"{sign}-{count}-parts-axis-{axis % 2}{'-from-end' if axis < 0 else ''}{'-ties' if ties else ''}", "QLinearConcat", [ys, zy, *parts],
                      "E3", {"axis": axis})  # fmt: skip


@family("ms.qlinearwhere-1/choices")
def where(rng: Rng) -> Iterator[Draft]:
    for sign, shape, ties in product(BOTH, ((6,), (2, 3), (2, 2, 2)), (False, True)):
        kind = TYPES[sign]
        scales = [f32(0.5), f32(2), f32(1)] if ties else [some_scale(rng) for _ in range(3)]
        zs = (
            [np.asarray(codes(rng, kind, (), -9, 9)) for _ in range(2)] if ties else [zero(rng, kind) for _ in range(2)]
        )
        yield contrib(f"{sign}-{len(shape)}d{'-ties' if ties else ''}", "QLinearWhere", [rng.random(shape) < 0.5, codes(rng, kind, shape), scales[0], zs[0],
                      codes(rng, kind, shape), scales[1], zs[1], scales[2], odd(rng, kind) if ties else zero(rng, kind)], "E4")  # fmt: skip


@family("ms.qlinearleakyrelu-1/slopes")
def leaky_relu(rng: Rng) -> Iterator[Draft]:
    for sign, alpha, ties in product(BOTH, (0.01, 0.1, 0.25, 1.5), (False, True)):
        kind = TYPES[sign]
        scales = (f32(0.5), f32(1)) if ties else (some_scale(rng), some_scale(rng))
        zs = (zero(rng, kind), odd(rng, kind))
        yield contrib(f"{sign}-alpha-{alpha:g}{'-ties' if ties else ''}", "QLinearLeakyRelu", [codes(rng, kind, (4, 8)), scales[0], zs[0], scales[1], zs[1]],
                      "G1" if ties else "E5", {"alpha": alpha})  # fmt: skip
        yield contrib(f"{sign}-alpha-{alpha:g}-without-output-zero-point{'-ties' if ties else ''}", "QLinearLeakyRelu",
                      [codes(rng, kind, (7,)), scales[0], zs[0], scales[1]], "G12", {"alpha": alpha})  # fmt: skip


@family("ms.qlinearsigmoid-1/scales")
def sigmoid(rng: Rng) -> Iterator[Draft]:
    for sign, scale in product(BOTH, (1 / 256, 1 / 255, 0.01, 0.0037)):
        kind = TYPES[sign]
        every = np.arange(256).astype(u8).view(kind)[::3]
        for center in ("middle", "end"):
            z = kind(np.iinfo(kind).min if center == "end" else (128 if kind is u8 else 0))
            yield contrib(
                f"{sign}-{scale:.4g}-{center}",
                "QLinearSigmoid",
                [every, f32(0.05), z, f32(scale), kind(np.iinfo(kind).min)],
                "E6",
            )
        yield contrib(
            f"{sign}-{scale:.4g}-without-output-zero-point",
            "QLinearSigmoid",
            [every[:7], f32(0.05), kind(3), f32(scale)],
            "G12",
        )


@family("ms.qlinearsoftmax-1/scales")
def softmax(rng: Rng) -> Iterator[Draft]:
    for sign, scale, opset, axis in product(BOTH, (1 / 256, 1 / 255, 0.0037), (11, 13), (-1, 0, 1)):
        kind = TYPES[sign]
        if opset == 11 and axis == 0 and scale != 1 / 255:
            continue
        yield contrib(f"{sign}-{scale:.4g}-opset-{opset}-axis-{axis}", "QLinearSoftmax", [codes(rng, kind, (2, 3, 4)), f32(0.05), zero(rng, kind), f32(scale),
                      kind(np.iinfo(kind).min)], "S2" if opset == 13 else "S2/coerced", {"opset": opset, "axis": axis})  # fmt: skip
    yield contrib(
        "no-elements",
        "QLinearSoftmax",
        [np.zeros((0, 3), u8), f32(1), u8(0), f32(1 / 256), u8(0)],
        "G11",
        {"opset": 13},
    )
