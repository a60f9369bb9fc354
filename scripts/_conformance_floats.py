"""Cases of Cast to the types of few bits: the tables that QuantizeLinear refers to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes as md
import numpy as np
from _conformance_case import Draft, Rng, family
from oracle.answers import Answer
from oracle.cast import cast

NUMBERS: dict[str, tuple[int, Any]] = {
    "float8_e4m3fn": (17, md.float8_e4m3fn), "float8_e4m3fnuz": (18, md.float8_e4m3fnuz),
    "float8_e5m2": (19, md.float8_e5m2), "float8_e5m2fnuz": (20, md.float8_e5m2fnuz),
}  # fmt: skip
VALUES = [0.0, -0.0, 1.0, 1.0625, 1.1875, -3.3, 448, 464, 463.9, 470, 480, 495, 57344, 61440, 61439, 1e9, np.inf, -np.inf, np.nan, 2.0**-9,
          2.0**-10, 3 * 2.0**-11, 240, 248, 2.0**-17, 2.0**-18]  # fmt: skip


@family("cast/float8")
def casts(rng: Rng) -> Iterator[Draft]:
    """Infinities in FNUZ types are cases of their own: they become NaN here, and saturate since Cast-24."""
    for version, name, saturate, source in product((19, 21, 23), NUMBERS, (1, 0), (np.float32, np.float16)):
        number, kind = NUMBERS[name]
        with np.errstate(over="ignore"):
            x = np.array(VALUES, np.float32).astype(source)
        parts = {"" if saturate else "-no-saturation": x}
        if name.endswith("fnuz") and saturate:
            parts = {"": x[~np.isinf(x)], "-infinities": x[np.isinf(x)]}
        for end, values in parts.items():
            due = np.array([cast(float(v), name, bool(saturate), version) for v in values], np.float32).astype(kind)
            yield Draft(f"{version}-{source.__name__}-to-{name.replace('_', '')}{end}", "Cast", [values],
                        {"to": number, "saturate": saturate}, version, "", "narrow", "Q6", answers=[Answer(due)])  # fmt: skip
