"""Random convolutions with their reference results, and scales with every accumulator where a result can go wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.native import LIMITS, Array, codes
from qrun.native.kernels.conv import Conv, Gemm
from qrun.native.machine.operation import Operation, size
from qrun.native.proof.epilogue import Target
from qrun.native.proof.search import INT32, exact_steps
from qrun.ops._context import Context
from qrun.ops.qlinearconv import qlinear_conv

F = np.float32
INT32_ENDS = np.array([-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 2, 2**31 - 1])

RATIOS = {
    "1/90": (1, 1, 90), "1/255": (1, 1, 255), "3/82": (3, 1, 82), "7/92": (7, 1, 92), "1/1000": (1, 1, 1000),
    "equal": (1, 1, 1), "1/6": (1, 1, 6), "2^-12": (1, 2**-12, 1), "2^3": (8, 1, 1), "7/2^11": (7, 2**-11, 1),
    "decimal": (0.1, 0.5, 0.3), "small": (0.0371, 0.00071, 0.7131), "tiny": (1, 2**-30, 1.1),
}  # fmt: skip
SPECIAL = {
    "subnormal": (1, 2**-149, 1), "all subnormal": (2**-149, 2**-149, 2**-149), "subnormal quotient": (2**-140, 1, 1),
    "zero": (0, 1, 1), "negative zero": (-0.0, 1, 1), "negative": (-1, 0.01, 1), "both negative": (-1, -0.01, 1),
    "divided by zero": (1, 1, 0), "zero by zero": (0, 1, 0), "by negative zero": (1, 1, -0.0),
    "infinite": (np.inf, 1, 1), "minus infinite": (1, -np.inf, 1), "by infinity": (1, 1, np.inf),
    "infinite by infinite": (np.inf, 1, np.inf), "nan": (np.nan, 1, 1), "huge": (3e38, 3e38, 1e-38),
    "511.99": (511.99, 1, 1), "512": (512, 1, 1), "negative 600": (-600, 1, 1), "tie far out": (1, 1, 2.0**26),
}  # fmt: skip
OUTPUTS = [("u8", 0), ("u8", 7), ("u8", 128), ("u8", 255), ("s8", -128), ("s8", 0), ("s8", 3)]


def run(operation: Conv | Gemm, x: Array) -> Array:
    """An operation of one operand, alone."""
    return operation.engine.run(operation, [x])


def touched(operation: Operation) -> tuple[int, int]:
    """Bytes that calls touch of a convolution's 8-bit operand, all of which count, and of its result."""
    x, y = (max((call.extents[place] for call in operation.tight), default=0) for place in (0, 1))
    return max(x, size(operation.operands[0].memory_shape("channels"))), y


def critical(scales: tuple[Any, Any, Any], out: str, zero: int) -> Array:
    """Accumulators at every step and one below it, of both orientations, and the ends of int32."""
    x, w, y = scales
    steps = exact_steps(F(x), np.array([w], F), F(y), LIMITS[out][0], zero).steps[0]
    points = np.concatenate([steps, steps - 1, -steps, -steps + 1, -steps - 1, INT32_ENDS])
    return np.unique(points[(points >= INT32[0]) & (points <= INT32[1])])


def conv_case(rng: np.random.Generator) -> dict[str, Any] | None:
    """A random convolution, or None if its kernel does not fit."""
    group, inputs = int(rng.choice([1, 1, 1, 2, 3, 4, 8])), int(rng.choice([1, 2, 3, 4, 5, 8, 16, 17, 40]))
    outputs = int(rng.choice([1, 1, 2, 5, 15, 16, 17, 33, 64, 65, 70]))
    if rng.random() < 0.25:
        inputs = outputs = 1
        group = int(rng.choice([2, 4, 5, 15, 16, 17, 33, 63, 64, 65, 130]))
    axes = int(rng.integers(1, 3))
    kernel = [int(rng.integers(1, 4)) for _ in range(axes)]
    image = [int(rng.integers(1, 9)) for _ in range(axes)]
    pads = [int(rng.integers(0, 3)) for _ in range(2 * axes)]
    dilations = [int(rng.integers(1, 3)) for _ in range(axes)]
    for i in range(axes):
        if image[i] + pads[i] + pads[axes + i] < (kernel[i] - 1) * dilations[i] + 1:
            return None
    kinds = [str(kind) for kind in rng.choice(["u8", "s8"], 3)]
    m = group * outputs
    x = codes(rng, (int(rng.choice([1, 1, 2, 3])), group * inputs, *image), kinds[0])
    w = codes(rng, (m, inputs, *kernel), kinds[1])
    zero_shape = (m,) if rng.random() < 0.4 else ()
    sigma = 5000 * np.sqrt(inputs * np.prod(kernel))
    scales = rng.uniform(0.5, 2, (m,) if rng.random() < 0.7 else ()) * 30 / sigma
    return {
        "x": x, "x_zero_point": codes(rng, (), kinds[0]), "w": w, "w_scale": np.asarray(scales, F),
        "w_zero_point": np.zeros((), w.dtype) if rng.random() < 0.4 else codes(rng, zero_shape, kinds[1]),
        "y_zero_point": codes(rng, (), kinds[2]), "out": kinds[2],
        "B": rng.integers(-5000, 5000, m).astype(np.int32) if rng.random() < 0.7 else None,
        "geometry": {"group": group, "strides": tuple(int(rng.integers(1, 4)) for _ in range(axes)),
                     "dilations": tuple(dilations), "pads": tuple(pads)},
    }  # fmt: skip


def target_of(case: dict[str, Any], arith: str = "exact") -> Target:
    return Target(F(0.3), case["w_scale"].reshape(-1), F(0.3), case["out"], int(case["y_zero_point"]), arith)


def reference(case: dict[str, Any], arith: str = "exact") -> Array:
    return qlinear_conv(
        case["x"], np.array(F(0.3)), case["x_zero_point"], case["w"], case["w_scale"], case["w_zero_point"],
        np.array(F(0.3)), case["y_zero_point"], case["B"], ctx=Context(arith=arith), **case["geometry"],
    )  # fmt: skip
