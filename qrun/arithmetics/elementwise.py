"""Elementwise operators of integer engines on 8-bit codes: sums, products, new scales and averages.

Each function returns the result before the zero point is added and the range is cut, as int64: code = clip(result +
y.zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qrun.arithmetics.families import FAMILIES
from qrun.arithmetics.family import Arithmetic, Scales
from qrun.arithmetics.primitives import shift_half_away, shift_half_up
from qrun.declare.frozen import frozen
from qrun.ir import Array

WIDE = 1 << 40
"""Beyond every code: results are cut by the caller."""
ADD_SHIFT = 20


@frozen
class Encoding:
    """Scale, a float32 number, and zero point of a tensor."""

    scale: np.float32
    zero: int


CodeRule = Callable[[Array, Array, Encoding, Encoding, Encoding], Array]
"""A sum or product: (codes of a, codes of b, a, b, y) to results; the arrays broadcast."""
Requantize = Callable[[Array, Encoding, Encoding], Array]
"""(codes, x, y) to results."""


def _rescale(family: Arithmetic, values: Array, x: Any, y: Any, w: Any = 1.0) -> Array:
    """Integers times x * w / y in the family's arithmetic."""
    return family.codes(values, Scales(*(np.asarray(scale, np.float32) for scale in (x, w, y))), 0, -WIDE, WIDE)


def _centre(codes: Array, of: Encoding) -> Array:
    """Codes without their zero point."""
    return np.asarray(np.asarray(codes, np.int64) - of.zero)


def add_shifted(family: Arithmetic) -> CodeRule:
    """The sum as TFLite computes it: both codes, shifted left by 20, are scaled by s / (2 * the larger scale), added,
    and scaled to the output. Each of the three steps rounds as the family does.

    Source: tensorflow/lite/kernels/add.cc, Prepare; kernels/internal/reference/add.h.
    """

    def add(a: Array, b: Array, of_a: Encoding, of_b: Encoding, y: Encoding) -> Array:
        with np.errstate(all="ignore"):
            twice = np.float32(2) * max(of_a.scale, of_b.scale)
            left = _rescale(family, _centre(a, of_a) << ADD_SHIFT, of_a.scale, twice)
            right = _rescale(family, _centre(b, of_b) << ADD_SHIFT, of_b.scale, twice)
            return _rescale(family, left + right, twice, np.float32(1 << ADD_SHIFT) * y.scale)

    return add


def add_21_bits(a: Array, b: Array, of_a: Encoding, of_b: Encoding, y: Encoding) -> Array:
    """The sum as XNNPACK computes it: multipliers rint(s / sy * 2^n), the larger of 21 bits; one rounding, half up.

    Source: XNNPACK src/microparams-init.c, xnn_init_qs8_add_minmax_scalar_params.
    """
    ratios, shift = scale_ratios(of_a, of_b, y, 20)
    return shift_half_up(_weighted(a, b, of_a, of_b, ratios, shift), shift)


def add_22_bits(a: Array, b: Array, of_a: Encoding, of_b: Encoding, y: Encoding) -> Array:
    """The sum as onnxruntime computes it on ARM: multipliers rint(s / sy * 2^n), the larger of 22 bits; one rounding,
    half away. Ratios outside 2^-14 .. 2^8 make it a sum of floats.

    Source: onnxruntime core/mlas/lib/qladd.cpp, MlasCalcQLinearAddParameters.
    """
    ratios, shift = scale_ratios(of_a, of_b, y, 21)
    whole = [round(float(ratio) * 2.0**shift) for ratio in ratios] if all(map(_in_reach, ratios)) else []
    if whole and max(whole) < 1 << 22 and 13 <= shift <= 31:
        return shift_half_away(_weighted(a, b, of_a, of_b, ratios, shift), shift)
    with np.errstate(all="ignore"):
        left, right = (_centre(c, of).astype(np.float32) * of.scale for c, of in ((a, of_a), (b, of_b)))
        total = np.clip((left + right) / y.scale, np.float32(-WIDE), np.float32(WIDE))
        rounded = np.rint(total + np.float32(y.zero)).astype(np.float64)
        return np.asarray(np.nan_to_num(rounded, nan=-WIDE).astype(np.int64) - y.zero)


def _in_reach(ratio: np.float32) -> bool:
    """Whether onnxruntime holds a ratio of scales as an integer."""
    return bool(2.0**-14 <= ratio < 256)


def scale_ratios(of_a: Encoding, of_b: Encoding, y: Encoding, bits: int) -> tuple[tuple[np.float32, np.float32], int]:
    """The ratios of the operands' scales to the output's, float32; and the shift that gives the larger one `bits` + 1
    bits."""
    with np.errstate(all="ignore"):
        ratios = np.float32(of_a.scale / y.scale), np.float32(of_b.scale / y.scale)
    larger = float(max(ratios))
    return ratios, bits + 1 - math.frexp(larger)[1] if math.isfinite(larger) else 0


def _weighted(
    a: Array, b: Array, of_a: Encoding, of_b: Encoding, ratios: tuple[np.float32, np.float32], shift: int
) -> Array:
    """The sum of codes times their ratios as integers of 2^-shift."""
    first, second = (round(float(ratio) * 2.0**shift) if math.isfinite(ratio) else 0 for ratio in ratios)
    return np.asarray(_centre(a, of_a) * first + _centre(b, of_b) * second)


def multiply(family: Arithmetic) -> CodeRule:
    """The product of codes, requantized as a sum of products is."""

    def product(a: Array, b: Array, of_a: Encoding, of_b: Encoding, y: Encoding) -> Array:
        return _rescale(family, _centre(a, of_a) * _centre(b, of_b), of_a.scale, y.scale, of_b.scale)

    return product


def requantize(family: Arithmetic) -> Requantize:
    """Codes of another scale, in the family's arithmetic."""

    def convert(codes: Array, x: Encoding, y: Encoding) -> Array:
        return _rescale(family, _centre(codes, x), x.scale, y.scale)

    return convert


def requantize_8_8(codes: Array, x: Encoding, y: Encoding) -> Array:
    """Codes of another scale as XNNPACK computes them: the ratio of the scales has 8 bits after the point; half up.

    Source: XNNPACK src/microparams-init.c, xnn_init_qs8_cvt_scalar_params.
    """
    with np.errstate(all="ignore"):
        ratio = float(np.float32(x.scale / y.scale)) * 256
    factor = round(ratio) if abs(ratio) < WIDE else 0
    return shift_half_up(_centre(codes, x) * factor, 8)


def average_of_codes(sums: Array, count: Array) -> Array:
    """The average of codes, as codes: the sum of codes over their count, half away from 0. int64 arrays.

    Source: tensorflow/lite/kernels/internal/reference/integer_ops/pooling.h.
    """
    with np.errstate(all="ignore"):
        return np.asarray(np.sign(sums) * ((np.abs(sums) + count // 2) // np.maximum(count, 1)))


@frozen
class IntegerEngine:
    """What one engine computes. name: of --arith, and on the page of qrun explain arithmetics.

    family:   for sums of products.
    add, multiply, requantize: for Add, for Mul, for Concat and for codes of another scale; None if it is not known.
    codes:    whether averages are of codes, where the scales are equal.
    pairs:    the family of Mul and, where Add shifts codes by ADD_SHIFT, of Add; None if Mul is not known.
    texts:    operators, and what is computed for them; users: who computes so; sources: where that is written.
    """

    name: str
    family: Arithmetic
    add: CodeRule | None = None
    multiply: CodeRule | None = None
    requantize: Requantize | None = None
    codes: bool = False
    pairs: Arithmetic | None = None
    texts: tuple[tuple[str, str], ...] = ()
    users: str = ""
    sources: tuple[str, ...] = ()

    def sums(self, acc: Array, scales: tuple[Array, Array, Array], zero: int) -> Array:
        """The codes of sums before the zero point, int64. scales: of x, w and y; zero: y's zero point."""
        return np.asarray(self.family.codes(acc, Scales(*scales), zero, -WIDE, WIDE) - zero)


_AVERAGE = "AveragePool", "the sum of codes over their count, half away from zero, if the scales are equal"
_CONCAT = "Concat, requantize"
_TFLITE_FILES = (
    "tensorflow/lite/kernels/add.cc",
    "tensorflow/lite/kernels/internal/reference/add.h",
    "tensorflow/lite/kernels/internal/reference/mul.h",
    "tensorflow/lite/kernels/internal/reference/requantize.h",
    "TFLite reference/integer_ops/pooling.h",
)
_XNNPACK_FILES = ("XNNPACK src/microparams-init.c",)


def _tflite(name: str, pairs: str, users: str) -> IntegerEngine:
    """TFLite's kernels. name: the family of sums and of new scales; pairs: that of Add and Mul."""
    own, two = FAMILIES[name], FAMILIES[pairs]
    add = f"both codes shifted left by 20 and rescaled, the sum rescaled, each as {pairs}"
    texts = (("Add", add), ("Mul", f"as {pairs}"), (_CONCAT, f"as {name}"), _AVERAGE)
    return IntegerEngine(
        name, own, add_shifted(two), multiply(two), requantize(own), True, two, texts, users, _TFLITE_FILES
    )


def _xnnpack(name: str, family: str, users: str) -> IntegerEngine:
    """XNNPACK's kernels."""
    own = FAMILIES[family]
    add = "the ratios of the scales as integers of 21 bits, one rounding, ties up"
    concat = "the ratio of the scales with 8 bits after the point, ties up"
    texts = (("Add", add), ("Mul", f"as {family}"), (_CONCAT, concat), _AVERAGE)
    return IntegerEngine(name, own, add_21_bits, multiply(own), requantize_8_8, True, own, texts, users, _XNNPACK_FILES)


_ENGINES = (
    _tflite("tfl-double", "tfl-double", "TFLite reference, CMSIS-NN"),
    _tflite("tfl-halfup2", "tfl-double", "LiteRT's optimized kernels (2 of 917,504 sums of Add differ)"),
    _tflite("tfl-single", "tfl-single", "CMSIS-NN with CMSIS_NN_USE_SINGLE_ROUNDING"),
    _xnnpack("rndnu", "rndnu", "XNNPACK on ARM, uint8 models"),
    _xnnpack("xnnpack", "fp32", "XNNPACK on x86"),
    IntegerEngine(
        "ort-arm",
        FAMILIES["fp32"],
        add_22_bits,
        texts=(("Add", "the ratios of the scales as integers of 22 bits, one rounding, ties away from zero"),),
        users="onnxruntime on ARM (from its source, not compared with a device)",
        sources=("onnxruntime core/mlas/lib/qladd.cpp",),
    ),
)
"""Engines whose elementwise operators are known."""
OWN = ("exact", "onnx-ref")
"""Families that qrun's own arithmetics of these names replace."""
ENGINES: Mapping[str, IntegerEngine] = {
    **{name: IntegerEngine(name, family) for name, family in FAMILIES.items() if name not in OWN},
    **{engine.name: engine for engine in _ENGINES},
}
"""All families, and the engines that combine them, by name: values of --arith."""
