"""Cases of Cast to the types of few bits: the tables that QuantizeLinear refers to."""

from __future__ import annotations

from collections.abc import Iterator
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
    for version in (19, 21, 23):
        for name, (number, kind) in NUMBERS.items():
            for saturate in (1, 0):
                for label, source in (("float32", np.float32), ("float16", np.float16)):
                    with np.errstate(over="ignore"):
                        x = np.array(VALUES, np.float32).astype(source)
                    due = np.array([cast(float(v), name, bool(saturate)) for v in x], np.float32).astype(kind)
                    yield Draft(f"{version}-{label}-to-{name.replace('_', '')}{'' if saturate else '-no-saturation'}", "Cast", [x], {"to": number, "saturate": saturate},
                                version, "", "narrow", "Q6", answers=[Answer(due)])  # fmt: skip
