"""Cases of QuantizeLinear to types of few bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes as md
import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_quantize import (
    FLOAT8,
    LOW,
    f16,
    f32,
    quantize,
    reals,
    zero_of,
)


@family("quantizelinear/narrow")
def narrow(rng: Rng) -> Iterator[Draft]:
    for (name, (kind, since)), version in product(LOW.items(), (21, 23, 25)):
        if version < since:
            continue
        scale = f32(rng.uniform(0.1, 0.5))
        made = (
            ("", reals(rng, (3, 5), scale, name), scale, zero_of(rng, name, kind), {}, "Q8"),
            ("-ties", reals(rng, (2, 7), 0.5, name, ties=True) / 8, f32(0.0625), zero_of(rng, name, kind, odd=True), {}, "G1"),
            ("-far-beyond", np.array([3e9, -3e9, np.inf, -np.inf, 1e30], f32), f32(1), np.zeros((), kind), {}, "G4"),
            ("-axis-far-beyond", np.array([[3e9, -3e9], [1, -1]], f32), np.ones(2, f32), np.zeros(2, kind), {"axis": 1}, "G4"),
            ("-axis", reals(rng, (3, 4), 0.2, name), np.full(4, 0.2, f32), zero_of(rng, name, kind, (4,)), {"axis": 1}, "Q8"),
            ("-blocks", reals(rng, (4, 3), 0.2, name), np.full((2, 3), 0.2, f32), zero_of(rng, name, kind, (2, 3)), {"axis": 0, "block_size": 2}, "Q5"),
            ("-odd-count", reals(rng, (3,), 0.3, name), f32(0.3), zero_of(rng, name, kind), {}, "Q8"),
            ("-float16", reals(rng, (5,), 0.25, name, f16), f16(0.25), zero_of(rng, name, kind), {}, "Q8"),
            ("-nan", np.array([np.nan, 1], f32), f32(1), np.zeros((), kind), {}, "G5"),
        )  # fmt: skip
        for label, x, s, z, attributes, clause in made:
            yield quantize(f"{version}-{name}{label}", x, s, z, version, clause, "narrow", **attributes)
    x8 = [0.0, -0.0, 1.0, 1.0625, 1.1875, -3.3, 448, 464, 463.9, 470, 480, 495, 500, 57344, 61440, 61439, 65535, 1e9, np.inf, -np.inf, np.nan,
          2.0**-9, 2.0**-10, 3 * 2.0**-11, 240, 248, 2.0**-17, 2.0**-18]  # fmt: skip
    for (name, kind), version, saturate in product(FLOAT8.items(), (19, 21, 23, 25), (1, 0)):
        attributes = {} if saturate else {"saturate": 0}
        label = f"{version}-{name}{'' if saturate else '-no-saturation'}"
        x = np.array(x8, f32)
        infinite = np.isinf(x)
        if name.endswith("fnuz") and saturate:
            zero = np.zeros((), kind)
            yield quantize(f"{label}-infinities", x[infinite], f32(1), zero, version, "Q6", "narrow")
            x = x[~infinite]
        yield quantize(label, x, f32(1), np.zeros((), kind), version, "Q6", "narrow", **attributes)
        yield quantize(
            f"{label}-scaled",
            (rng.normal(0, 40, (4, 6))).astype(f32),
            f32(0.37),
            np.zeros((), kind),
            version,
            "Q6",
            "narrow",
            **attributes,
        )
        yield quantize(
            f"{label}-float16",
            np.array([1.0, 3.3, 448, 464, 480, 60000, -0.0], f16),
            f16(1),
            np.zeros((), kind),
            version,
            "Q6",
            "narrow",
            **attributes,
        )
    for version in (23, 24, 25):
        four = np.zeros((), md.float4_e2m1fn)
        yield quantize(f"{version}-float4e2m1", np.array([0, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.1, 7, -9, np.inf, np.nan], f32), f32(1), four, version,
                       "Q6", "narrow")  # fmt: skip
        yield quantize(
            f"{version}-float4e2m1-scaled",
            rng.normal(0, 2, (3, 5)).astype(f32),
            f32(0.7),
            four,
            version,
            "Q6",
            "narrow",
        )
        yield quantize(f"{version}-float4e2m1-blocks", rng.normal(0, 2, (2, 8)).astype(f32), np.array([[0.7, 0.4], [1, 0.3]], f32), np.zeros((2, 2), md.float4_e2m1fn),
                       version, "Q5", "narrow", axis=1, block_size=4)  # fmt: skip
