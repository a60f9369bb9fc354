"""Cases of QLinearConv and ConvInteger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family

from qrun.conform.suite import EITHER

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
TYPES = {"u": u8, "s": i8}
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((6,), (3,), {}),
    "1d-pads-right": ((5,), (3,), {"pads": [0, 2]}),
    "1d-stride-dilation": ((9,), (2,), {"strides": [2], "dilations": [3]}),
    "1d-same-lower": ((4,), (2,), {"auto_pad": "SAME_LOWER"}),
    "2d": ((4, 4), (2, 2), {}),
    "2d-asymmetric-pads": ((3, 4), (3, 2), {"pads": [0, 1, 2, 0]}),
    "2d-stride": ((5, 4), (2, 3), {"strides": [2, 1]}),
    "2d-stride-beyond-kernel": ((5, 5), (1, 1), {"strides": [3, 2]}),
    "2d-dilations": ((5, 6), (2, 2), {"dilations": [3, 2]}),
    "2d-same-upper": ((3, 4), (2, 2), {"auto_pad": "SAME_UPPER"}),
    "2d-same-lower": ((3, 4), (2, 2), {"auto_pad": "SAME_LOWER"}),
    "2d-same-upper-stride": ((5, 4), (3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "2d-same-lower-stride": ((5, 4), (2, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    "2d-same-dilations": ((4, 4), (2, 2), {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}),
    "2d-same-stride-beyond-kernel": ((4, 5), (1, 1), {"auto_pad": "SAME_UPPER", "strides": [3, 4]}),
    "2d-valid": ((4, 4), (3, 2), {"auto_pad": "VALID"}),
    "2d-pads-wider-than-image": ((1, 2), (2, 2), {"pads": [2, 1, 2, 3]}),
    "2d-kernel-as-image": ((3, 3), (3, 3), {}),
    "3d": ((3, 2, 3), (2, 2, 2), {}),
    "3d-pads-strides": ((3, 3, 3), (2, 1, 2), {"pads": [1, 0, 0, 0, 1, 1], "strides": [2, 1, 2]}),
    "3d-dilations": ((3, 4, 3), (2, 2, 1), {"dilations": [2, 3, 1]}),
}


def codes(rng: Rng, kind: Any, shape: Sequence[int], low: int | None = None, high: int | None = None) -> Any:
    """Codes of the whole range, a quarter of them its ends; or of low..high."""
    info = np.iinfo(kind)
    if low is not None and high is not None:
        return rng.integers(max(low, info.min), min(high, info.max) + 1, shape).astype(kind)
    values = rng.integers(info.min, info.max + 1, shape)
    return np.where(rng.random(shape) < 0.25, rng.choice([info.min, info.max], shape), values).astype(kind)


def zero(rng: Rng, kind: Any, shape: Sequence[int] = ()) -> Any:
    info = np.iinfo(kind)
    return np.asarray(rng.integers(info.min, info.max + 1, shape)).astype(kind)


def some_scale(rng: Rng, shape: Sequence[int] = (), center: float = -3.0) -> Any:
    return np.asarray(np.exp(rng.normal(center, 0.7, shape))).astype(f32)


def fitting(rng: Rng, taps: int, xs: Any, ws: Any) -> Any:
    """A scale of the output for which most results are within its range."""
    return f32(float(np.mean(xs)) * float(np.mean(ws)) * 70.0 * max(taps, 1) ** 0.5 * float(np.exp(rng.normal(0, 0.2))))


def conv(
    rng: Rng, id: str, types: str, geometry: str = "2d", *, channels: int = 2, group: int = 1, filters: int = 3, batch: int = 1,
    forms: str = "tcc", bias: Any = "some", ties: bool = False, fed: Sequence[int] | None = None, op: str = "QLinearConv", **more: Any,
) -> Draft:  # fmt: skip
    """types: of x, w and y, u or s. forms: of x's, w's scale and w's zero point: t a scalar, o [1], c one per channel.

    ties: power-of-two scales and small codes, so that half of the sums are exact ties.
    """
    size, kernel, attributes = GEOMETRIES[geometry]
    attributes = dict(attributes)
    if group > 1:
        attributes["group"] = group
    xt, wt, yt = (TYPES[t] for t in types)
    small = (-4, 4) if ties else (None, None)
    x, w = (
        codes(rng, xt, (batch, channels, *size), *small),
        codes(rng, wt, (filters, channels // group, *kernel), *small),
    )
    form: dict[str, tuple[int, ...]] = {"t": (), "o": (1,), "c": (filters,)}
    xz = np.asarray(codes(rng, xt, (), *small)) if ties else zero(rng, xt, form[forms[0]])
    wz = np.asarray(codes(rng, wt, form[forms[2]], *small)) if ties else zero(rng, wt, form[forms[2]])
    if ties:
        xs, ws = f32(0.5), np.asarray(2.0 ** rng.integers(-1, 2, form[forms[1]])).astype(f32)
        ys = f32(2.0)
    else:
        xs, ws = some_scale(rng, form[forms[0]]), some_scale(rng, form[forms[1]])
        ys = fitting(rng, int(np.prod(w.shape[1:])), xs, ws)
    info = np.iinfo(yt)
    yz = np.asarray(int(rng.integers(info.min // 4, info.max // 4)) * 2 + 1, yt) if ties else zero(rng, yt)
    if isinstance(bias, str):
        bias = rng.integers(-2000, 2000, filters).astype(i32) if not ties else rng.integers(-9, 9, filters).astype(i32)
    if op == "ConvInteger":
        return Draft(id, op, [x, w, xz, wz], attributes, fed=fed, **{"clause": "G7", **more})
    inputs = [x, xs, xz, w, ws, wz, ys, yz, *([bias] if bias is not None else [])]
    return Draft(id, op, inputs, attributes, fed=fed, **{"clause": "G3", **more})


TRIPLES = ["".join(t) for t in product("us", repeat=3)]


@family("qlinearconv-10/types")
def conv_types(rng: Rng) -> Iterator[Draft]:
    for triple in TRIPLES:
        for rank, geometry in (("1d", "1d"), ("2d", "2d-asymmetric-pads"), ("3d", "3d-pads-strides")):
            yield conv(rng, f"{triple}-{rank}", triple, geometry, clause="C1")
            yield conv(rng, f"{triple}-{rank}-no-bias", triple, geometry, bias=None, forms="ttt", clause="C1")


def geometry_clause(name: str, otherwise: str) -> str:
    """The section about a geometry: padding, or where nothing is padded the sums."""
    return "C4" if "same" in name else "G8" if "pads" in name else otherwise


@family("qlinearconv-10/geometry")
def conv_geometry(rng: Rng) -> Iterator[Draft]:
    for name, triple in product(GEOMETRIES, ("uuu", "usu", "sss")):
        yield conv(rng, f"{name}-{triple}", triple, name, forms="ttt", clause=geometry_clause(name, "G3"))


@family("qlinearconv-10/ties")
def conv_ties(rng: Rng) -> Iterator[Draft]:
    """Exact ties with odd zero points: zero point before rounding, or away from zero, shows."""
    for triple, geometry in product(TRIPLES, ("1d", "2d", "3d")):
        yield conv(rng, f"{geometry}-odd-zero-{triple}", triple, geometry, ties=True, clause="G1")
    for triple in ("uuu", "usu", "sss", "suu"):
        draft = conv(rng, f"2d-even-zero-{triple}", triple, ties=True, forms="ttt", clause="G2")
        draft.inputs = [*draft.inputs[:7], np.asarray(10, draft.inputs[7].dtype), *draft.inputs[8:]]
        yield draft


@family("qlinearconv-10/per-channel")
def conv_per_channel(rng: Rng) -> Iterator[Draft]:
    for geometry, triple in product(("1d", "2d", "3d"), TRIPLES):
        yield conv(rng, f"{geometry}-{triple}", triple, geometry, clause="C2")
    for geometry in ("1d", "2d-asymmetric-pads", "3d"):
        yield conv(rng, f"{geometry}-as-many-channels", "usu", geometry, channels=3, filters=3, clause="C2")
    yield conv(rng, "2d-as-wide-as-filters", "usu", "2d", channels=3, filters=3, clause="C2")
    yield conv(rng, "3d-one-filter", "usu", "3d", filters=1, forms="tcc", clause="C2")


@family("qlinearconv-10/lenient")
def conv_lenient(rng: Rng) -> Iterator[Draft]:
    """Forms that the text excludes: a scale and a zero point of different shapes, and [1] for the whole tensor."""
    more: dict[str, Any] = {"profile": "lenient", "expects": EITHER}
    for triple, geometry in product(TRIPLES, ("1d", "2d", "3d")):
        yield conv(
            rng, f"ties-{geometry}-odd-zero-{triple}", triple, geometry, ties=True, forms="tct", clause="C2", **more
        )
    for forms, geometry, triple in product(
        ("tct", "ttc", "occ", "too", "oco"), ("1d", "2d", "3d"), ("uuu", "usu", "sss")
    ):
        clause = "C2" if "t" in forms[1:] else "G9"
        yield conv(rng, f"{geometry}-{forms}-{triple}", triple, geometry, forms=forms, clause=clause, **more)
    yield conv(rng, "2d-as-wide-as-filters", "usu", "2d", channels=3, filters=3, forms="tct", clause="C2", **more)


@family("qlinearconv-10/groups")
def conv_groups(rng: Rng) -> Iterator[Draft]:
    for group, channels, filters in ((2, 2, 2), (2, 4, 4), (3, 3, 6), (4, 4, 4), (2, 2, 6)):
        for geometry, triple in product(("1d", "2d-asymmetric-pads", "3d"), ("uuu", "usu", "sss")):
            yield conv(rng, f"{geometry}-{group}-groups-{channels}-to-{filters}-{triple}", triple, geometry, group=group,
                       channels=channels, filters=filters, clause="C2")  # fmt: skip


@family("qlinearconv-10/fed")
def conv_fed(rng: Rng) -> Iterator[Draft]:
    """Parameters that are inputs of the graph, not constants."""
    for triple in ("uuu", "usu", "sss"):
        for name, places in (("weights", (0, 3)), ("output-scale", (0, 6, 7)), ("bias", (0, 8)), ("all", range(9))):
            yield conv(rng, f"{name}-{triple}", triple, "2d-asymmetric-pads", fed=tuple(places))


def replaced(draft: Draft, **changes: Any) -> Draft:
    """Inputs changed by place, i0=...; other fields by name."""
    inputs = list(draft.inputs)
    for name, value in changes.items():
        if name[0] == "i" and name[1:].isdigit():
            inputs[int(name[1:])] = value
        else:
            setattr(draft, name, value)
    draft.inputs = inputs
    return draft


@family("qlinearconv-10/edge")
def conv_edges(rng: Rng) -> Iterator[Draft]:
    def edge(
        id: str, triple: str = "usu", geometry: str = "2d-asymmetric-pads", clause: str = "G4", **changes: Any
    ) -> Draft:
        own = {k: changes.pop(k) for k in ("channels", "filters", "batch", "group", "forms", "bias") if k in changes}
        return replaced(
            conv(rng, id, triple, geometry, profile="edge", clause=clause, **{"forms": "ttt", **own}), **changes
        )

    for triple in ("uuu", "usu", "sss", "sus"):
        kind = TYPES[triple[2]]
        info = np.iinfo(kind)
        for name, value in (("least", info.min), ("greatest", info.max)):
            yield edge(f"zero-point-{name}-{triple}", triple, i7=np.asarray(value, kind))
        yield edge(f"saturates-both-ends-{triple}", triple, i6=f32(1e-4))
        yield edge(f"far-beyond-int32-{triple}", triple, i1=f32(1e8), i6=f32(1e-9))
        for name, value in (("least", 0), ("greatest", 1)):
            x_info = np.iinfo(TYPES[triple[0]])
            yield edge(f"padding-with-x-zero-point-{name}-{triple}", triple, "2d-pads-wider-than-image", clause="G8",
                       i2=np.asarray((x_info.min, x_info.max)[value], TYPES[triple[0]]))  # fmt: skip
    for name, value in (("subnormal", 1e-41), ("tiny", 1e-30), ("huge", 1e30), ("infinite", np.inf), ("nan", np.nan), ("zero", 0.0),
                        ("negative", -0.05)):  # fmt: skip
        for place, which in ((1, "x"), (4, "w"), (6, "y")):
            clause = {"nan": "G5", "tiny": "G4", "huge": "G4"}.get(name, "G6")
            yield edge(f"{which}-scale-{name}", clause=clause, **{f"i{place}": f32(value)})
    top = np.iinfo(i32)
    for name, bias in (
        ("greatest", [top.max] * 3),
        ("least", [top.min] * 3),
        ("beside-ends", [top.max - 70000, top.min + 90000, 5]),
    ):
        yield edge(f"bias-{name}-wraps", clause="G7", bias=np.array(bias, i32), i6=f32(2e4), i1=f32(0.01), i4=f32(0.01))
        yield edge(
            f"bias-{name}-wraps-sss",
            "sss",
            clause="G7",
            bias=np.array(bias, i32),
            i6=f32(2e4),
            i1=f32(0.01),
            i4=f32(0.01),
        )
    yield edge("no-images", batch=0, clause="G11")
    yield edge("no-filters", filters=0, bias=None, clause="G11")
    yield edge("no-channels-gives-the-bias", channels=0, clause="G11")
    yield edge("no-channels-no-bias", channels=0, bias=None, clause="G11")


@family("convinteger-10/types")
def integer_types(rng: Rng) -> Iterator[Draft]:
    for pair, geometry in product(("uu", "us", "su", "ss"), ("1d", "2d-asymmetric-pads", "3d-pads-strides")):
        yield conv(rng, f"{geometry}-{pair}", pair + "u", geometry, forms="ttt", op="ConvInteger")


@family("convinteger-10/geometry")
def integer_geometry(rng: Rng) -> Iterator[Draft]:
    for name, pair in product(GEOMETRIES, ("uu", "us")):
        yield conv(
            rng,
            f"{name}-{pair}",
            pair + "u",
            name,
            forms="ttt",
            op="ConvInteger",
            clause=geometry_clause(name, "G7"),
        )


@family("convinteger-10/parameters")
def integer_parameters(rng: Rng) -> Iterator[Draft]:
    for geometry, pair in product(("1d", "2d", "3d"), ("uu", "us", "ss")):
        base = {"geometry": geometry, "op": "ConvInteger"}
        yield conv(rng, f"{geometry}-per-channel-{pair}", pair + "u", forms="ttc", clause="C7", **base)  # type: ignore[arg-type]
        yield replaced(
            conv(rng, f"{geometry}-no-zero-points-{pair}", pair + "u", forms="ttt", clause="G12", **base),
            i2=None,
            i3=None,
        )  # type: ignore[arg-type]
        yield replaced(
            conv(rng, f"{geometry}-no-x-zero-point-{pair}", pair + "u", forms="ttt", clause="G12", **base), i2=None
        )  # type: ignore[arg-type]
    for group, channels, filters in ((2, 2, 4), (3, 3, 3)):
        yield conv(rng, f"{group}-groups", "usu", "2d-asymmetric-pads", group=group, channels=channels, filters=filters, forms="ttt",
                   op="ConvInteger")  # fmt: skip
    for places in ((0, 1), (0, 1, 2, 3)):
        yield conv(rng, f"fed-{len(places)}", "usu", "2d-asymmetric-pads", forms="ttt", op="ConvInteger", fed=places)


@family("convinteger-10/lenient")
def integer_lenient(rng: Rng) -> Iterator[Draft]:
    """Zero points of shape [1] for the whole tensor, which the text excludes."""
    for geometry, pair in product(("1d", "2d", "3d"), ("uu", "us", "ss")):
        yield conv(rng, f"{geometry}-one-element-{pair}", pair + "u", geometry, forms="oto", op="ConvInteger", clause="G9", profile="lenient",
                   expects=EITHER)  # fmt: skip


@family("convinteger-10/edge")
def integer_edges(rng: Rng) -> Iterator[Draft]:
    for name, pair, xz, wz in (
        ("most", "uu", 0, 0),
        ("pairs-beyond-int16", "us", 0, 0),
        ("least", "us", 255, 127),
        ("signed", "ss", -128, -128),
    ):
        x_type, w_type = TYPES[pair[0]], TYPES[pair[1]]
        x, w = np.full((1, 4, 3, 3), np.iinfo(x_type).max, x_type), np.full((2, 4, 2, 2), np.iinfo(w_type).max, w_type)
        yield Draft(name, "ConvInteger", [x, w, x_type(xz), w_type(wz)], clause="G7", profile="edge")
    yield replaced(
        conv(rng, "no-channels", "usu", channels=0, forms="ttt", op="ConvInteger"), profile="edge", clause="G11"
    )
    yield replaced(conv(rng, "no-images", "usu", batch=0, forms="ttt", op="ConvInteger"), profile="edge", clause="G11")
