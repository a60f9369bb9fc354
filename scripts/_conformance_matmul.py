"""Cases of QLinearMatMul and MatMulInteger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_conv import TRIPLES, TYPES, codes, replaced, some_scale, zero

from qrun.conform.suite import EITHER

f32, f16, u8, i8 = np.float32, np.float16, np.uint8, np.int8
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrix": ((3, 4), (4, 5)),
    "square": ((3, 3), (3, 3)),
    "long-k": ((2, 37), (37, 3)),
    "one-row": ((1, 5), (5, 4)),
    "vector-matrix": ((4,), (4, 3)),
    "matrix-vector": ((3, 4), (4,)),
    "vectors": ((5,), (5,)),
    "batches": ((2, 3, 4), (2, 4, 2)),
    "batch-broadcast": ((2, 1, 2, 3), (1, 3, 3, 2)),
    "batch-of-a": ((2, 3, 4), (4, 2)),
    "batch-of-b": ((3, 4), (2, 4, 2)),
}
FORMS: dict[str, tuple[str, str]] = {
    "per-tensor": ("t", "t"),
    "one-element": ("o", "o"),
    "per-row": ("v", "t"),
    "per-column": ("t", "v"),
    "rows-and-columns": ("v", "v"),
    "full": ("f", "f"),
}


def form(kind: str, shape: Sequence[int], columns: bool) -> tuple[int, ...]:
    """The shape of a parameter: t scalar, o [1], v a vector of rows or columns, f [..,M,1] or [..,1,N]."""
    if kind in "to":
        return () if kind == "t" else (1,)
    if kind == "v":
        return (shape[-1 if columns else -2],)
    return (*shape[:-2], 1, shape[-1]) if columns else (*shape[:-1], 1)


def matmul(
    rng: Rng, id: str, types: str, shapes: str = "matrix", forms: str = "per-tensor", *, ties: bool = False, op: str = "QLinearMatMul",
    scale: Any = f32, **more: Any,
) -> Draft:  # fmt: skip
    a_shape, b_shape = SHAPES[shapes]
    at, bt, yt = (TYPES[t] for t in types)
    small = (-4, 4) if ties else (None, None)
    fa, fb = FORMS[forms]
    a_form, b_form = form(fa, a_shape, False), form(fb, b_shape, True)
    a, b = codes(rng, at, a_shape, *small), codes(rng, bt, b_shape, *small)
    az, bz = (
        (np.asarray(codes(rng, at, a_form, *small)), np.asarray(codes(rng, bt, b_form, *small)))
        if ties
        else (zero(rng, at, a_form), zero(rng, bt, b_form))
    )
    if op == "MatMulInteger":
        return Draft(id, op, [a, b, az, bz], **{"clause": "G7", **more})
    info = np.iinfo(yt)
    if ties:
        sa, sb = np.full(a_form, 0.5, scale), np.asarray(2.0 ** rng.integers(-1, 2, b_form)).astype(scale)
        sy, zy = scale(2), np.asarray(int(rng.integers(info.min // 4, info.max // 4)) * 2 + 1, yt)
    else:
        sa, sb = some_scale(rng, a_form).astype(scale), some_scale(rng, b_form).astype(scale)
        sy = scale(float(np.mean(sa.astype(f32))) * float(np.mean(sb.astype(f32))) * 70 * a_shape[-1] ** 0.5)
        zy = zero(rng, yt)
    return Draft(id, op, [a, sa, az, b, sb, bz, np.asarray(sy), zy], **{"clause": "G3", **more})


@family("qlinearmatmul-10/types")
def types(rng: Rng) -> Iterator[Draft]:
    for triple, shapes in product(TRIPLES, ("matrix", "batches", "long-k")):
        yield matmul(rng, f"{triple}-{shapes}", triple, shapes, clause="C1")


@family("qlinearmatmul-10/shapes")
def shapes(rng: Rng) -> Iterator[Draft]:
    for name, triple in product(SHAPES, ("uuu", "usu", "sss")):
        yield matmul(rng, f"{name}-{triple}", triple, name, clause="G3")


@family("qlinearmatmul-10/lenient")
def lenient(rng: Rng) -> Iterator[Draft]:
    """Forms that the text excludes: [1] for the whole tensor, and a scale and a zero point of different shapes."""
    more: dict[str, Any] = {"profile": "lenient", "expects": EITHER}
    for name in ("vector-matrix", "matrix-vector", "vectors", "matrix"):
        yield matmul(rng, f"{name}-one-element-parameters", "uuu", name, "one-element", clause="G9", **more)
    for triple in ("uuu", "usu", "sss"):
        a_zero, b_scale = zero(rng, TYPES[triple[0]], (3,)), some_scale(rng, (5,))
        yield replaced(matmul(rng, f"zero-points-per-row-{triple}", triple, clause="M1", **more), i2=a_zero)
        yield replaced(matmul(rng, f"scales-per-column-{triple}", triple, clause="M1", **more), i4=b_scale)


@family("qlinearmatmul-10/parameters")
def parameters(rng: Rng) -> Iterator[Draft]:
    for forms, shape, triple in product(
        ("per-row", "per-column", "rows-and-columns"), ("matrix", "square"), ("uuu", "usu", "sss")
    ):
        yield matmul(rng, f"{forms}-{shape}-{triple}", triple, shape, forms, clause="M1")
    for shape, triple in product(("matrix", "batches", "square"), ("uuu", "usu", "sss")):
        yield matmul(rng, f"full-{shape}-{triple}", triple, shape, "full", clause="M1")


@family("qlinearmatmul-10/ties")
def ties(rng: Rng) -> Iterator[Draft]:
    for triple, shape in product(TRIPLES, ("matrix", "batches")):
        yield matmul(rng, f"odd-zero-{shape}-{triple}", triple, shape, ties=True, clause="G1")
    for forms, triple in product(("per-row", "per-column"), ("uuu", "usu", "sss")):
        yield matmul(rng, f"odd-zero-{forms}-{triple}", triple, "matrix", forms, ties=True, clause="G1")
    for triple in ("uuu", "usu", "sss"):
        yield replaced(matmul(rng, f"even-zero-{triple}", triple, ties=True, clause="G2"), i7=TYPES[triple[2]](20))


@family("qlinearmatmul-10/near-ties")
def near_ties(rng: Rng) -> Iterator[Draft]:
    """Ratios of scales as calibrators make them: float32 steps end on the other side of a tie."""
    for ratio, triple in product((6, 14, 82, 90, 98, 250, 255), ("uuu", "usu", "sss")):
        draft = matmul(rng, f"scales-1-to-{ratio}-{triple}", triple, "matrix", clause="G3")
        s = f32(rng.uniform(0.001, 0.1))
        yield replaced(draft, i1=s, i4=f32(s), i6=f32(float(s) * float(s) * ratio))


@family("qlinearmatmul-10/fed")
def fed(rng: Rng) -> Iterator[Draft]:
    for triple, (name, places) in product(
        ("uuu", "usu", "sss"), (("a", (0,)), ("output-scale", (0, 3, 6, 7)), ("all", tuple(range(8))))
    ):
        yield matmul(rng, f"{name}-{triple}", triple, fed=places)


@family("qlinearmatmul-10/edge")
def edges(rng: Rng) -> Iterator[Draft]:
    for triple in ("uuu", "usu", "sss", "sus"):
        kind = TYPES[triple[2]]
        info = np.iinfo(kind)
        yield matmul_edge(rng, f"saturates-both-ends-{triple}", triple, i6=f32(1e-4))
        yield matmul_edge(rng, f"far-beyond-int32-{triple}", triple, i1=f32(1e8), i6=f32(1e-9))
        yield matmul_edge(rng, f"zero-point-least-{triple}", triple, i7=kind(info.min))
        yield matmul_edge(rng, f"zero-point-greatest-{triple}", triple, i7=kind(info.max))
    for name, value in (
        ("subnormal", 1e-41),
        ("tiny", 1e-30),
        ("huge", 1e30),
        ("infinite", np.inf),
        ("nan", np.nan),
        ("zero", 0.0),
        ("negative", -0.05),
    ):
        for place, which in ((1, "a"), (4, "b"), (6, "y")):
            yield matmul_edge(
                rng,
                f"{which}-scale-{name}",
                clause={"nan": "G5", "tiny": "G4", "huge": "G4"}.get(name, "G6"),
                **{f"i{place}": f32(value)},
            )
    for triple, m, n in product(("uuu", "usu", "sss"), (1, 2), (1, 3)):
        at, bt, yt = (TYPES[t] for t in triple)
        yield Draft(f"no-inner-dimension-{m}x{n}-{triple}", "QLinearMatMul", [np.zeros((m, 0), at), f32(1), at(0), np.zeros((0, n), bt), f32(1),
                    bt(0), f32(1), yt(7)], clause="G11", profile="edge")  # fmt: skip
    for name, shape in (
        ("no-rows", ((0, 3), (3, 2))),
        ("no-columns", ((2, 3), (3, 0))),
        ("no-batches", ((0, 2, 3), (0, 3, 2))),
    ):
        yield matmul_edge(rng, name, clause="G11", i0=np.zeros(shape[0], u8), i3=np.zeros(shape[1], i8))
    for triple in ("usu", "uuu"):
        a, b = np.full((1, 8), 255, u8), np.full((8, 2), np.iinfo(TYPES[triple[1]]).max, TYPES[triple[1]])
        b[1::2, 1] = np.iinfo(TYPES[triple[1]]).min
        yield Draft(f"pairs-beyond-int16-{triple}", "QLinearMatMul", [a, f32(1), u8(0), b, f32(1), TYPES[triple[1]](0), f32(2000), u8(128)],
                    clause="G7", profile="edge")  # fmt: skip


def matmul_edge(rng: Rng, id: str, triple: str = "usu", clause: str = "G4", **changes: Any) -> Draft:
    return replaced(matmul(rng, id, triple, profile="edge", clause=clause), **changes)


@family("qlinearmatmul-21/scale-types")
def scale_types(rng: Rng) -> Iterator[Draft]:
    for name, triple in product(("float16", "bfloat16", "float32"), ("uuu", "usu", "sss")):
        scale = {"float16": f16, "bfloat16": ml_dtypes.bfloat16, "float32": f32}[name]
        yield matmul(rng, f"{name}-{triple}", triple, scale=scale, version=21, clause="G3")
        yield matmul(rng, f"{name}-ties-{triple}", triple, scale=scale, ties=True, version=21, clause="G1")
        yield matmul(
            rng,
            f"{name}-rows-and-columns-{triple}",
            triple,
            "matrix",
            "rows-and-columns",
            scale=scale,
            version=21,
            clause="M1",
        )
    draft = matmul(rng, "float16-product-is-subnormal", "uuu", scale=f16, version=21, clause="G3")
    yield replaced(draft, i1=f16(0.0066), i4=f16(0.00705), i6=f16(0.0047))


@family("matmulinteger-10/types")
def integer_types(rng: Rng) -> Iterator[Draft]:
    for pair, shape in product(("uu", "us", "su", "ss"), SHAPES):
        yield matmul(rng, f"{shape}-{pair}", pair + "u", shape, op="MatMulInteger")


@family("matmulinteger-10/parameters")
def integer_parameters(rng: Rng) -> Iterator[Draft]:
    for forms, shape, pair in product(
        ("per-row", "per-column", "rows-and-columns"), ("matrix", "square"), ("uu", "us")
    ):
        yield matmul(rng, f"{forms}-{shape}-{pair}", pair + "u", shape, forms, op="MatMulInteger", clause="M1")
    for shape, pair in product(("batches", "square"), ("uu", "us")):
        yield matmul(rng, f"full-{shape}-{pair}", pair + "u", shape, "full", op="MatMulInteger", clause="M1")
    for pair in ("uu", "us", "ss"):
        yield replaced(
            matmul(rng, f"no-zero-points-{pair}", pair + "u", op="MatMulInteger", clause="G12"), i2=None, i3=None
        )
        yield replaced(matmul(rng, f"no-a-zero-point-{pair}", pair + "u", op="MatMulInteger", clause="G12"), i2=None)
        yield matmul(rng, f"fed-{pair}", pair + "u", op="MatMulInteger", fed=(0, 1, 2, 3))


@family("matmulinteger-10/lenient")
def integer_lenient(rng: Rng) -> Iterator[Draft]:
    """Zero points of shape [1] for the whole tensor, which the text excludes."""
    for pair in ("uu", "us", "ss"):
        yield matmul(rng, f"one-element-{pair}", pair + "u", "matrix", "one-element", op="MatMulInteger", clause="G9", profile="lenient",
                     expects=EITHER)  # fmt: skip


@family("matmulinteger-10/edge")
def integer_edges(rng: Rng) -> Iterator[Draft]:
    def edge(id: str, a: Any, b: Any, *zeros: Any, clause: str = "G7") -> Draft:
        return Draft(id, "MatMulInteger", [a, b, *zeros], clause=clause, profile="edge")

    for pair in ("uu", "us", "ss"):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        for m, n in ((1, 1), (2, 3)):
            yield edge(f"no-inner-dimension-{m}x{n}-{pair}", np.zeros((m, 0), at), np.zeros((0, n), bt), clause="G11")
        b = np.full((6, 2), np.iinfo(bt).max, bt)
        b[1::2, 1] = np.iinfo(bt).min
        yield edge(f"pairs-beyond-int16-{pair}", np.full((1, 6), np.iinfo(at).max, at), b)
        yield edge(
            f"zero-points-at-ends-{pair}",
            codes(rng, at, (2, 5)),
            codes(rng, bt, (5, 3)),
            at(np.iinfo(at).max),
            bt(np.iinfo(bt).min),
        )
    one = np.full((1, 33026), 255, u8)
    yield edge("wraps-beyond-int32", one, np.full((33026, 1), 255, u8))
    yield edge("just-below-int32", one[:, :33025], np.full((33025, 1), 255, u8))
