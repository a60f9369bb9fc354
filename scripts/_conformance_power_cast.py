"""Cases of Cast between all types of few bits and the others, of opsets 19 to 28."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_power import SIZES
from _conformance_power_types import allowed, every_code, number, numpy_type
from oracle.answers import Answer
from oracle.cast import cast, power
from oracle.quantize import RANGES

f32 = np.float32
FLOAT8 = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
FLOAT6 = ("float6e2m3", "float6e3m2")
NARROW = ("uint4", "int4", "uint2", "int2")
WIDE = ("float", "float16", "bfloat16")


def known(version: int, *names: str) -> list[str]:
    """Those of these types that a version has."""
    return [name for name in names if name in allowed("Cast", version, "T1")]


def node(id: str, version: int, x: Any, to: str, due: Any, clause: str, **attributes: Any) -> Draft:
    return Draft(
        id, "Cast", [x], {"to": number(to), **attributes}, version, "", "narrow", clause, answers=[Answer(due)]
    )


def floats(x: Any, to: str, saturate: bool = True) -> Any:
    """What floats become in another float type, number by number."""
    kind = numpy_type(to)
    with np.errstate(all="ignore"):
        return np.array([cast(float(v), kind.name, saturate) for v in x.ravel()], f32).astype(kind).reshape(x.shape)


def ends(to: str) -> Any:
    """Numbers around the ends of a float type, around its least, ties, infinities, NaN and zeros."""
    every = np.unique(np.abs(every_code(to).astype(f32)))
    every = every[np.isfinite(every)]
    top, step, least = every[-1], every[-1] - every[-2], every[1]
    around = [
        top,
        top + step * 0.4,
        top + step / 2,
        top + step * 0.6,
        top + step,
        top * 2,
        top * 1000,
        least,
        least / 2,
        least * 0.51,
        least * 0.49,
        least * 1.5,
    ]
    middle = (every[1:] + every[:-1]) / 2
    return np.array(
        [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            *around,
            *(-v for v in around),
            *middle[::5],
            *np.nextafter(middle[::7], f32(0)),
            1e-30,
        ],
        f32,
    )


@family("cast/to-narrow-floats")
def to_narrow_floats(rng: Rng) -> Iterator[Draft]:
    for version in (24, 28):
        for to, source in product(known(version, *FLOAT8, *FLOAT6, "float4e2m1"), WIDE):
            with np.errstate(over="ignore"):
                x = ends(to).astype(numpy_type(source))
            if to not in FLOAT8:
                inside = np.abs(x.astype(f32)) <= np.nanmax(every_code(to).astype(f32))
                yield node(f"{version}-{source}-to-{to}", version, x[inside], to, floats(x[inside], to), "Q6")
                x = x[~inside]
            for saturate in (1, 0) if to in FLOAT8 else (1,):
                more = {} if saturate else {"saturate": 0}
                label = "" if to in FLOAT8 else "-beyond"
                yield node(
                    f"{version}-{source}-to-{to}{label}{'' if saturate else '-no-saturation'}",
                    version,
                    x,
                    to,
                    floats(x, to, bool(saturate)),
                    "Q6",
                    **more,
                )


@family("cast/from-narrow-floats")
def from_narrow_floats(rng: Rng) -> Iterator[Draft]:
    for version in (21, 24, 28):
        for source, to in product(known(version, *FLOAT8, *FLOAT6, "float4e2m1", "float8e8m0"), WIDE):
            if (version < 24 and to == "bfloat16") or (source == "float8e8m0" and to == "float16"):
                continue
            x = every_code(source)
            if source == "float8e8m0":
                x = x[1:]
            yield node(f"{version}-{source}-to-{to}", version, x, to, floats(x.astype(f32), to), "F11")


@family("cast/between-narrow-floats")
def between_narrow_floats(rng: Rng) -> Iterator[Draft]:
    for version in (24, 28):
        for source, to in product(known(version, *FLOAT8, *FLOAT6, "float4e2m1"), repeat=2):
            if source != to and (version == 28 or "6" in source + to):
                x = every_code(source)
                if to not in FLOAT8:
                    x = x[np.abs(x.astype(f32)) <= np.max(every_code(to).astype(f32))]
                yield node(f"{version}-{source}-to-{to}", version, x, to, floats(x.astype(f32), to), "Q6")


@family("cast/float8e8m0")
def to_powers(rng: Rng) -> Iterator[Draft]:
    """Positive numbers only: the text leaves others open."""
    for version, source, mode, saturate in product((24, 28), ("float", "bfloat16"), ("up", "down", "nearest"), (1, 0)):
        x = np.array(
            [1, 1.25, 1.5, 1.4999, 1.75, 2, 3, 3.1, 2.9999, 1e30, 2.0**-126, 3 * 2.0**-127, 2.0**127, 5e-20, 0.75, 0.1],
            f32,
        ).astype(numpy_type(source))
        due = np.array([power(float(v), mode, bool(saturate)) for v in x], f32).astype(numpy_type("float8e8m0"))
        yield node(
            f"{version}-{source}-{mode}{'' if saturate else '-no-saturation'}",
            version,
            x,
            "float8e8m0",
            due,
            "Q6",
            round_mode=mode,
            saturate=saturate,
        )


@family("cast/narrow-integers")
def narrow_integers(rng: Rng) -> Iterator[Draft]:
    """From integers the higher bits are discarded; from and to floats, numbers in range."""
    for version in (21, 28):
        for narrow, (at, wide) in product(
            known(version, *NARROW), enumerate(("int8", "uint8", "int32", "float", "float16"))
        ):
            low, high = RANGES[narrow]
            kind, bits = numpy_type(narrow), (high - low + 1).bit_length() - 1
            if wide.startswith("float"):
                due = np.concatenate([np.arange(low, high + 1), [low, high, 0]])
                x = due.astype(numpy_type(wide))
            else:
                info = np.iinfo(numpy_type(wide))
                x = rng.integers(info.min, info.max + 1, 35).astype(info.dtype)
                due = (x.astype(np.int64) - low) % 2**bits + low
            yield node(f"{version}-{wide}-to-{narrow}", version, x, narrow, due.astype(kind), "F10")
            every = np.arange(low, high + 1)[: high - low + at % 2]
            due = every.astype(numpy_type(wide))
            yield node(
                f"{version}-{narrow}-to-{wide}",
                version,
                every.astype(kind),
                wide,
                due,
                "F11" if wide.startswith("float") else "F10",
            )


@family("cast/sizes")
def sizes(rng: Rng) -> Iterator[Draft]:
    """As many elements as fill vectors and bytes of packed codes, or one more or less."""
    versions = cycle((25, 28))
    for n, to in product(SIZES, ("float8e4m3fn", "float4e2m1", "int4", "uint2")):
        version = next(versions)
        x = np.resize(rng.normal(0, 2, 67).clip(-6, 6), n).astype(f32)
        if to in NARROW:
            low, high = RANGES[to]
            wide = np.resize(rng.integers(-128, 128, 67), n).astype(np.int8)
            due = ((wide.astype(np.int64) - low) % (high - low + 1) + low).astype(numpy_type(to))
            yield node(f"{version}-{n}-{to}", version, wide, to, due, "F10")
        else:
            yield node(f"{version}-{n}-{to}", version, x, to, floats(x, to), "Q6")


@family("cast/integers")
def integers(rng: Rng) -> Iterator[Draft]:
    """Between integers of 8 to 64 bits the higher bits are discarded, or the sign is kept; and from and to bool."""
    names = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    pairs = [(source, to) for source, to in product(names, repeat=2) if source != to]
    for (source, to), version in zip(pairs[::2] + pairs[1::2], cycle((19, 21, 25, 28)), strict=False):
        given, target = np.iinfo(source), np.iinfo(to)
        x = rng.integers(given.min, given.max, 29, numpy_type(source), endpoint=True)
        x[:4] = (given.min, given.max, 0, 100)
        due = [(int(v) - int(target.min)) % 2**target.bits + int(target.min) for v in x]
        yield core(f"{version}-{source}-to-{to}", version, x, to, np.array(due, to), "F10")
    for name, version in zip(names, cycle((19, 21, 25, 28)), strict=False):
        x = np.array([0, 1, 2, np.iinfo(name).max, np.iinfo(name).min, 0], name)
        yield core(f"{version}-{name}-to-bool", version, x, "bool", np.array([v != 0 for v in x.tolist()]), "F10/bool")
        truth = rng.integers(0, 2, (3, 5)).astype(bool)
        ones = np.array([[1 if v else 0 for v in row] for row in truth.tolist()], name)
        yield core(f"{version}-bool-to-{name}", version, truth, name, ones, "F10/bool")


def core(*given: Any) -> Draft:
    """A node about types that every runtime has."""
    return replace(node(*given), profile="core")
