"""Cases of QLinearMatMul and MatMulInteger in sizes of vectors, with parameters of all forms, and large sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, product
from typing import Any

import ml_dtypes
import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_conv import TYPES, some_scale, zero
from _conformance_power import DEPTHS, SIZES, patterned
from _conformance_power_conv import RUNGS, rung

f32, f16, u8, i8 = np.float32, np.float16, np.uint8, np.int8
MIXES = ("uuu", "usu", "sss")
Shape = Sequence[int]


def matmul(
    rng: Rng, id: str, types: str, a: Shape, b: Shape, *, a_form: Shape = (), b_form: Shape = (), exact: bool = True,
    scale: Any = f32, op: str = "QLinearMatMul", clause: str = "G3", version: int = 10,
) -> Draft:  # fmt: skip
    """A product of these shapes. a_form, b_form: the shape of scale and zero point of each.

    exact: all scales are powers of two, so that ties occur and the exact results are short.
    """
    at, bt, yt = (TYPES[t] for t in types)
    left, right = patterned(rng, at, a), patterned(rng, bt, b)
    az, bz = zero(rng, at, a_form), zero(rng, bt, b_form)
    if op == "MatMulInteger":
        return Draft(id, op, [left, right, az, bz], clause=clause)
    if exact:
        sa, sb = (np.asarray(2.0 ** rng.integers(-2, 1, form)).astype(scale) for form in (a_form, b_form))
        sy = scale(2.0 ** int(5 + np.log2(a[-1]) / 2))
    else:
        sa, sb = some_scale(rng, a_form).astype(scale), some_scale(rng, b_form).astype(scale)
        sy = scale(float(np.mean(sa.astype(f32))) * float(np.mean(sb.astype(f32))) * 70 * a[-1] ** 0.5)
    return Draft(id, op, [left, sa, az, right, sb, bz, np.asarray(sy), zero(rng, yt)], version=version, clause=clause)


def sizes(rng: Rng, op: str, clause: str, mixes: Sequence[str]) -> Iterator[Draft]:
    """Each of rows, depth and columns around the lengths of vectors."""
    for n, types in zip(SIZES, cycle(mixes[::-1])):
        yield matmul(rng, f"{n}-rows-{types}", types, (n, 5), (5, 2), op=op, clause=clause)
        yield matmul(rng, f"{n}-columns-{types}", types, (2, 6), (6, n), op=op, clause=clause)
    for (k, types), exact in zip(product(DEPTHS, mixes), cycle((True, False, False))):
        yield matmul(rng, f"{k}-deep-{types}", types, (3, k), (k, 4), op=op, clause=clause, exact=exact)
    for k, types in product((16, 33, 64, 65, 257), mixes):
        yield matmul(rng, f"vectors-{k}-deep-{types}", types, (k,), (k,), op=op, clause=clause, exact=False)


BATCHES: dict[str, tuple[Shape, Shape]] = {
    "3-batches": ((3, 2, 9), (3, 9, 5)),
    "17-columns": ((2, 3, 8), (2, 8, 17)),
    "33-rows": ((2, 33, 4), (2, 4, 2)),
    "65-deep": ((3, 2, 65), (3, 65, 3)),
    "2x3-batches": ((2, 3, 2, 7), (2, 3, 7, 4)),
    "broadcast-both": ((3, 1, 2, 8), (1, 2, 8, 3)),
    "broadcast-a": ((4, 8), (3, 8, 5)),
    "broadcast-b": ((3, 4, 8), (8, 5)),
}


def forms(rng: Rng, op: str, mixes: Sequence[str], more: dict[str, Any]) -> Iterator[Draft]:
    """Parameters for the whole tensor, per row of each matrix, per column of each."""
    for (name, (a, b)), types in product(BATCHES.items(), mixes):
        rows, columns = (*a[:-1], 1), (*b[:-2], 1, b[-1])
        for label, a_form, b_form in (
            ("tensor", (), ()),
            ("rows", rows, ()),
            ("columns", (), columns),
            ("both", rows, columns),
        ):
            if label == "columns" and len(b) == 2:
                b_form = (b[-1],)
            if label == "both" and (len(a) == 2 or len(b) == 2):
                a_form, b_form = (a[-2],) if len(a) == 2 else rows, (b[-1],) if len(b) == 2 else columns
            if label == "rows" and len(a) == 2:
                a_form = (a[-2],)
            clause = "M1" if label != "tensor" else "G7" if op == "MatMulInteger" else "G3"
            yield matmul(rng, f"{name}-{label}-{types}", types, a, b, a_form=a_form, b_form=b_form, op=op, clause=clause,
                         exact=label != "both", **more)  # fmt: skip


@family("qlinearmatmul-10/sizes")
def linear_sizes(rng: Rng) -> Iterator[Draft]:
    yield from sizes(rng, "QLinearMatMul", "G3", MIXES)


@family("qlinearmatmul-10/batches")
def linear_batches(rng: Rng) -> Iterator[Draft]:
    yield from forms(rng, "QLinearMatMul", ("usu", "sss"), {})


@family("qlinearmatmul-21/batches")
def newer_batches(rng: Rng) -> Iterator[Draft]:
    for scale in (f16, ml_dtypes.bfloat16):
        for draft in forms(
            rng, "QLinearMatMul", ("uuu",) if scale is f16 else ("sss",), {"scale": scale, "version": 21}
        ):
            if "broadcast" in draft.id or "batches" in draft.id:
                draft.id = f"{np.dtype(scale).name}-{draft.id}"
                yield draft


@family("qlinearmatmul-21/depths")
def newer_depths(rng: Rng) -> Iterator[Draft]:
    for k, (name, scale), types in product(
        (8, 33, 65, 257), {"float32": f32, "float16": f16, "bfloat16": ml_dtypes.bfloat16}.items(), ("uuu", "sss")
    ):
        yield matmul(rng, f"{name}-{k}-{types}", types, (2, k), (k, 3), scale=scale, version=21, exact=k != 65)


@family("matmulinteger-10/sizes")
def integer_sizes(rng: Rng) -> Iterator[Draft]:
    yield from sizes(rng, "MatMulInteger", "G7", ("usu",))


@family("matmulinteger-10/batches")
def integer_batches(rng: Rng) -> Iterator[Draft]:
    yield from forms(rng, "MatMulInteger", ("usu",), {})


def extreme(rng: Rng, pair: str, k: int, ends: tuple[int, int], odd: bool) -> list[Any]:
    """Operands of greatest products with zero points at the ends of their types; of b every fourth code differs."""
    at, bt = TYPES[pair[0]], TYPES[pair[1]]
    a, b = np.full((2, k), np.iinfo(at).max, at), np.full((k, 3), np.iinfo(bt).max, bt)
    a[1] = patterned(rng, at, (k,))
    b[:, 1], b[3::4, 2] = np.iinfo(bt).min, np.iinfo(bt).min
    if odd:
        a[0, -1] -= 1
    bounds = [(np.iinfo(t).min, np.iinfo(t).max)[end] for t, end in zip((at, bt), ends, strict=True)]
    return [a, b, at(bounds[0]), bt(bounds[1])]


@family("matmulinteger-10/large-sums")
def large_sums(rng: Rng) -> Iterator[Draft]:
    """Sums beyond 2^24, whose last bits float32 loses; pairs beyond int16; zero points at the ends."""
    for pair, k, ends in product(("uu", "us", "su", "ss"), (33, 600, 1025), product((0, 1), repeat=2)):
        yield Draft(f"{k}-zero-points-{'-'.join(('least', 'greatest')[e] for e in ends)}-{pair}", "MatMulInteger", extreme(rng, pair, k, ends, True),
                    clause="G7")  # fmt: skip
    for pair, k in product(("us", "uu"), (2, 4, 15, 16, 17, 32, 63, 65)):
        a, b, *_ = extreme(rng, pair, k, (0, 0), False)
        yield Draft(f"{k}-no-zero-points-{pair}", "MatMulInteger", [a, b], clause="G12")
    for name, k in (("below", 33025), ("beyond", 33027)):
        for pair in ("uu", "su"):
            a, b = np.full((1, k), 255 if pair[0] == "u" else -128, TYPES[pair[0]]), np.full((k, 2), 255, u8)
            b[::2, 1] = 1
            zeros = (u8(0), u8(0)) if pair[0] == "u" else (i8(127), u8(0))
            yield Draft(f"{name}-int32-{pair}", "MatMulInteger", [a, b, *zeros], clause="G7", profile="edge")


@family("qlinearmatmul-10/large-sums")
def linear_large_sums(rng: Rng) -> Iterator[Draft]:
    for types, k, ends in product(MIXES, (33, 600), product((0, 1), repeat=2)):
        a, b, az, bz = extreme(rng, types, k, ends, True)
        yt = TYPES[types[2]]
        for shift in (0, 3):
            sy = f32(2.0 ** (7 + shift + int(np.log2(k))))
            yield Draft(f"{k}-{'-'.join(('least', 'greatest')[e] for e in ends)}-by-{2**shift}-{types}", "QLinearMatMul",
                        [a, f32(1), az, b, f32(1), bz, sy, yt(7)], clause="G3")  # fmt: skip
    for k, types in product((2, 4, 15, 16, 17, 32, 63, 65), ("usu", "uss")):
        a, b, *_ = extreme(rng, types, k, (0, 0), False)
        yield Draft(f"pairs-{k}-{types}", "QLinearMatMul", [a, f32(0.5), u8(0), b, f32(0.5), i8(0), f32(2.0 ** int(6 + np.log2(k))), TYPES[types[2]](9)],
                    clause="G3")  # fmt: skip


def aimed(id: str, types: str, targets: Sequence[int], scales: tuple[float, float, float], clause: str) -> Draft:
    """A QLinearMatMul of one column whose sums are these targets, as 100 times one code and another."""
    at, bt, yt = (TYPES[t] for t in types)
    signed = np.array([[np.sign(t) * digit for digit in (*divmod(abs(t), 100), 0)] for t in targets])
    assert np.abs(signed).max() < 128
    zero_a = 128 if at is u8 else 0
    a, b = signed + zero_a, np.array([100, 1, 77])[:, None] + (20 if bt is u8 else 0)
    info = np.iinfo(yt)
    yz = np.asarray((info.min + info.max) // 2 | 1, yt)
    sa, sb, sy = (f32(s) for s in scales)
    return Draft(
        id,
        "QLinearMatMul",
        [a.astype(at), sa, at(zero_a), b.astype(bt), sb, bt(20 if bt is u8 else 0), sy, yz],
        clause=clause,
    )


@family("qlinearmatmul-10/beside-ties")
def beside_ties(rng: Rng) -> Iterator[Draft]:
    """Sums one beside a tie: two roundings, as of a doubled high product and a shift, meet at the tie."""
    for shift, types in product((3, 5, 6, 7, 8), MIXES):
        most = min(50, 2 ** (14 - shift))
        ties = (2 * rng.integers(-most, most, 24) + 1) * 2 ** (shift - 1)
        yield aimed(
            f"2-to-{shift}-{types}",
            types,
            (ties + rng.choice([-1, 1], 24)).tolist(),
            (0.5, 0.5, 2.0 ** (shift - 2)),
            "G3",
        )
        yield aimed(f"2-to-{shift}-ties-{types}", types, ties.tolist(), (0.5, 0.5, 2.0 ** (shift - 2)), "G1")


@family("qlinearmatmul-10/ladder")
def ladder(rng: Rng) -> Iterator[Draft]:
    """Ratios of scales 2^-n beside a power of two: a multiplier of fewer bits is that power, and rounds a tie."""
    for bits, types, sign in product((6, 8, 10, 13, 14, 15, 16, 17, 20, 23), ("uuu", "sss"), (1, -1)):
        ties = (2 * rng.integers(-50, 50, 24) + 1) * 2**7
        a_scale = 1 + sign * 2.0**-bits / (2 if sign < 0 else 1)
        yield aimed(
            f"{bits}-bits-{'above' if sign > 0 else 'below'}-{types}", types, ties.tolist(), (a_scale, 2.0**-8, 1), "G3"
        )


@family("qlinearmatmul-10/float32-scales")
def float32_scales(rng: Rng) -> Iterator[Draft]:
    """Sums that are ties but for the last bits of the ratio of scales, which a float32 multiplier has lost."""
    for (a, b), types in product(RUNGS, ("uuu", "sss")):
        ties = (2 * rng.integers(-50, 50, 24) + 1) * 2**7
        yield aimed(f"{a}-{b}-{types}".replace("--", "-minus-"), types, ties.tolist(), rung(a, b), "G3")
