"""How far float32 functions are from the real values, in units in the last place, over all float32 numbers.

    python scripts/functions_error.py [--step N] [FUNCTION ...]

The real values are float64's. Each function is run by its native kernel; with --step only every Nth number is tried.
numerics.md, F41, has the figures.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import qrun

FUNCTIONS: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in [
            "Exp",
            "Sigmoid",
            "Tanh",
            "Erf",
            "Gelu",
            "Softplus",
            "Mish",
            "Elu",
            "Selu",
            "Celu",
            "Log",
            "Sin",
            "Cos",
            "Tan",
            "Asin",
            "Acos",
            "Atan",
            "Sinh",
            "Cosh",
            "Asinh",
            "Acosh",
            "Atanh",
            "Swish",
        ]
    },
    "Gelu by tanh": {"approximate": "tanh"},
}
BLOCK = 1 << 22


def model(name: str, kind: int, attributes: dict[str, Any]) -> Any:
    node = helper.make_node(name.split()[0], ["x"], ["y"], **attributes)
    x, y = (helper.make_tensor_value_info(tensor, kind, ["n"]) for tensor in "xy")
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 28)], ir_version=10
    )


def error(name: str, step: int) -> tuple[float, float]:
    """The greatest error, and of which number. Infinities and NaN must be the same; of angles only those up to 2**22
    are tried. Subnormal results do not count."""
    single = qrun.Session(model(name, TensorProto.FLOAT, FUNCTIONS[name]), backend="native")
    double = qrun.Session(model(name, TensorProto.DOUBLE, FUNCTIONS[name]), backend="reference")
    worst, where = 0.0, 0.0
    for first in range(0, 1 << 32, BLOCK * step):
        x = np.arange(first, min(first + BLOCK * step, 1 << 32), step, dtype=np.uint32).view(np.float32)
        x = x[~np.isnan(x) & ((np.abs(x) <= 2.0**22) | (name not in ("Sin", "Cos", "Tan")))]
        if not x.size:
            continue
        with np.errstate(all="ignore"):
            made, real = single.run({"x": x})["y"].astype(np.float64), double.run({"x": x.astype(np.float64)})["y"]
            nearest = real.astype(np.float32)
            finite = np.isfinite(nearest) & np.isfinite(made)
            assert (finite | (made == nearest) | (np.isnan(made) & np.isnan(real)) | (abs(real) > 3.4e38)).all(), name
            unit = np.ldexp(1.0, np.frexp(real)[1] - 24)
            apart = np.where(finite & (np.abs(real) >= 2.0**-126), np.abs(made - real) / unit, 0)
        if apart.max() > worst:
            worst, where = float(apart.max()), float(x[apart.argmax()])
    return worst, where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", default=list(FUNCTIONS))
    parser.add_argument("--step", type=int, default=1)
    given = parser.parse_args()
    for name in given.functions:
        worst, where = error(name, given.step)
        print(f"{name:14} {worst:9.4f} of {where!r}", flush=True)


if __name__ == "__main__":
    main()
