"""Defects of types, of numbers that are not finite, of the narrow floats, and of DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from defects.node import Defect, Node, Planted
from qrun.ir import Array
from qrun.ops._quantize import is_integer, limits

QUANTIZE, DEQUANTIZE = ["quantizelinear-"], ["dequantizelinear-"]
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
LEAST = {"float8_e4m3fn": -6, "float8_e4m3fnuz": -7, "float8_e5m2": -14, "float8_e5m2fnuz": -15, "float16": -14, "float6_e2m3fn": 0,
         "float6_e3m2fn": -2, "float4_e2m1fn": 0}  # fmt: skip
"""The exponent of the smallest normal number."""


def as_another_type(n: Node) -> Array | None:
    return n.expected.astype(np.int16) if n.expected.dtype in (np.uint8, np.int8) else None


def one_more_axis(n: Node) -> Array | None:
    return n.expected[None]


def no_output(n: Node) -> Array | None:
    return None


def difference_wraps(n: Node) -> Array | None:
    x, scale, zero = (n.inputs.get(k) for k in ("x", "x_scale", "x_zero_point"))
    if x is None or scale is None or zero is None or x.dtype != np.int32:
        return None
    narrow = (x.astype(np.int64) - zero.astype(np.int64)).astype(np.int32)
    return np.asarray(narrow.astype(np.float32) * scale.astype(np.float32))


def difference_in_float32(n: Node) -> Array | None:
    x, scale, zero = (n.inputs.get(k) for k in ("x", "x_scale", "x_zero_point"))
    if x is None or scale is None or zero is None or x.dtype != np.int32:
        return None
    return np.asarray((x.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32))


def difference_of_8_bits(n: Node) -> Array | None:
    """x - x_zero_point wraps in the type of x."""
    x, zero = n.inputs.get("x"), n.inputs.get("x_zero_point")
    if x is None or zero is None or x.dtype not in (np.uint8, np.int8) or zero.size != 1:
        return None
    return n.made(x=x - zero.reshape(()), x_zero_point=np.zeros_like(zero))


def nan_is_the_greatest(n: Node) -> Array | None:
    x = n.inputs.get("x")
    if (
        x is None
        or not np.isnan(x.astype(np.float32)).any()
        or not is_integer(n.expected.dtype)
        or x.shape != n.expected.shape
    ):
        return None
    return np.where(np.isnan(x), limits(n.expected.dtype)[1], n.expected).astype(n.expected.dtype)


def of_floats(change: Callable[[Array, str], Array], *names: str) -> Defect:
    """Outputs of these narrow floats are changed: change(values as float32, name of the type)."""

    def defect(n: Node) -> Array | None:
        name = n.expected.dtype.name
        if name not in (names or LEAST):
            return None
        with np.errstate(all="ignore"):
            return change(n.expected.astype(np.float32), name).astype(n.expected.dtype)

    return defect


def largest(name: str) -> float:
    return {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0}[name]


def without_output_dtype(n: Node) -> Array | None:
    """y has the type that it would have without the attribute."""
    if not n.node.attributes.get("output_dtype"):
        return None
    if n.node.op_type == "QuantizeLinear":
        return n.expected.astype(np.float32).astype(np.uint8) if n.inputs.get("y_zero_point") is None else None
    scale = n.inputs.get("x_scale")
    return None if scale is None else n.expected.astype(scale.dtype)


def saturates_always(n: Node) -> Array | None:
    return n.made({"saturate": 1}) if n.node.attributes.get("saturate", 1) == 0 else None


def saturates_never(n: Node) -> Array | None:
    return n.made({"saturate": 0}) if n.expected.dtype.name in FLOAT8 and n.node.attributes.get("saturate", 1) else None


def rounded_up_by_bits(kind: str) -> Defect:
    """Without saturation, numbers in the binade of the largest float8 are cut to its bits. If these are NaN's,
    they become the largest. Rounding up adds one; beyond the largest it sets the bits of infinity (or NaN) in them."""
    cut, bias, most, above = {"float8_e4m3fn": (20, 120 << 3, 0x7E, 0x7F), "float8_e5m2": (21, 112 << 2, 0x7B, 0x7C)}[
        kind
    ]

    def defect(n: Node) -> Array | None:
        x, scale = n.inputs.get("input", n.inputs.get("x")), n.inputs.get("y_scale")
        one = scale is None or scale.size == 1
        if x is None or n.expected.dtype.name != kind or n.node.attributes.get("saturate", 1) or not one:
            return None
        with np.errstate(all="ignore"):
            real = x.astype(np.float32) / (np.float32(1) if scale is None else scale.astype(np.float32).reshape(()))
        bits = np.asarray(real).view(np.uint32).astype(np.int64)
        code, rest, half = ((bits & 0x7FFFFFFF) >> cut) - bias, bits & ((1 << cut) - 1), 1 << (cut - 1)
        up = (rest > half) | ((rest == half) & (code % 2 == 1))
        whole = np.minimum(code, most) if kind == "float8_e4m3fn" else code
        whole = np.where(up, np.where(whole < most, whole + 1, whole | above), whole) | (bits >> 24 & 0x80)
        made = whole.astype(np.uint8).view(n.expected.dtype)
        top = (np.abs(real) >= largest(kind)) & (np.abs(real) < 2.0 ** np.ceil(np.log2(largest(kind))))
        return np.where(top, made, n.expected)

    return defect


def is_packed(array: Array) -> bool:
    return array.dtype.name in ("uint4", "int4", "float4_e2m1fn")


def nibbles_swapped(array: Array) -> Array | None:
    """The second code of each byte comes first."""
    if not is_packed(array) or array.size < 2:
        return None
    order = np.arange(array.size) ^ 1
    return array.ravel()[np.minimum(order, array.size - 1)].reshape(array.shape)


def quarters_reversed(array: Array) -> Array | None:
    if array.dtype.name not in ("uint2", "int2") or array.size < 2:
        return None
    return array.ravel()[np.minimum(np.arange(array.size) ^ 3, array.size - 1)].reshape(array.shape)


def half_byte_lost(n: Node) -> Array | None:
    """The last code of an odd count is not written."""
    if not is_packed(n.expected) or n.expected.size % 2 == 0:
        return None
    y = n.expected.copy()
    y.ravel()[-1] = 0
    return y


def other_sign(n: Node) -> Array | None:
    """Codes and zero points of the inputs are read as signed, or as unsigned."""
    other = {"uint8": np.int8, "int8": np.uint8, "uint16": np.int16, "int16": np.uint16}
    names = [
        k
        for k in ("x", "x_zero_point", "w", "w_zero_point", "a", "a_zero_point", "A", "b", "b_zero_point")
        if n.inputs.get(k) is not None
    ]
    found = {k: n.inputs[k] for k in names if n.inputs[k].dtype.name in other}  # type: ignore[union-attr]
    return n.made(**{k: v.view(other[v.dtype.name]) for k, v in found.items()}) if found else None  # type: ignore[union-attr]


def signed_without_zero_points(n: Node) -> Array | None:
    """Codes of matrices are read as signed, and their zero points are not subtracted."""
    if not any(x is not None and x.dtype == np.uint8 for x in map(n.inputs.get, ("a", "b"))):
        return None
    zeros = {
        k: np.zeros_like(v, np.int8) for k in ("a_zero_point", "b_zero_point") if (v := n.inputs.get(k)) is not None
    }
    return n.made(a=n.inputs["a"].view(np.int8), b=n.inputs["b"].view(np.int8), **zeros)  # type: ignore[union-attr]


def scale_flushed(n: Node) -> Array | None:
    """Subnormal scales are 0."""
    names = [k for k, v in n.inputs.items() if "scale" in k and v is not None and v.dtype == np.float32]
    small = {k: n.inputs[k] for k in names if (np.abs(n.inputs[k]) < 2.0**-126).any() and (n.inputs[k] != 0).any()}  # type: ignore[arg-type, operator, union-attr]
    return n.made(**{k: v * 0 for k, v in small.items()}) if small else None  # type: ignore[operator]


def product_in_output_type(n: Node) -> Array | None:
    """DequantizeLinear rounds the difference to the type of 16 bits first."""
    x, scale, zero = (n.inputs.get(k) for k in ("x", "x_scale", "x_zero_point"))
    kind = n.expected.dtype
    if (
        x is None
        or scale is None
        or scale.size != 1
        or kind.itemsize != 2
        or x.dtype.name not in ("uint16", "int16", "uint8", "int8", "int32")
    ):
        return None
    difference = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64).reshape(()))
    with np.errstate(all="ignore"):
        return np.asarray(
            (difference.astype(kind).astype(np.float32) * scale.astype(kind).astype(np.float32).reshape(())).astype(
                kind
            )
        )


def one_bias_bit_lost(n: Node) -> Array | None:
    """float8e4m3fnuz and float8e5m2fnuz are read with the exponent of e4m3fn and e5m2."""
    x = n.inputs.get("x", n.inputs.get("input"))
    if x is None or not x.dtype.name.endswith("fnuz") or n.expected.dtype != np.float32:
        return None
    return n.expected * np.float32(2)


def dynamic(scale_of: Callable[[Array], tuple[float, float]]) -> Defect:
    """DynamicQuantizeLinear with scale and zero point computed so; y from them."""

    def defect(n: Node) -> Array | None:
        x = n.inputs.get("x")
        if n.node.op_type != "DynamicQuantizeLinear" or x is None or not x.size or not np.isfinite(x).all():
            return None
        scale, zero = scale_of(x)
        if not scale or not np.isfinite(scale):
            return None
        code = np.clip(zero, 0, 255)
        return np.clip(np.rint((x / np.float32(scale)).astype(np.float64)) + code, 0, 255).astype(np.uint8)

    return defect


def range_of(x: Array) -> tuple[np.float32, np.float32]:
    return np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))


def without_zero(x: Array) -> tuple[float, float]:
    scale = (np.float32(x.max()) - np.float32(x.min())) / np.float32(255)
    return scale, np.rint(-x.min() / scale) if scale else 0


def floor_zero_point(x: Array) -> tuple[float, float]:
    low, high = range_of(x)
    scale = (high - low) / np.float32(255)
    return scale, np.floor(-low / scale) if scale else 0


def half_up_zero_point(x: Array) -> tuple[float, float]:
    low, high = range_of(x)
    scale = (high - low) / np.float32(255)
    return scale, np.floor(-low / scale + np.float32(0.5)) if scale else 0


def double_range(x: Array) -> tuple[float, float]:
    """In float64, of which the scale is rounded last."""
    low, high = (float(v) for v in range_of(x))
    scale = (high - low) / 255
    return scale, float(np.rint(-low / scale)) if scale else 0


def symmetric(x: Array) -> tuple[float, float]:
    most = np.abs(x).max()
    return most * np.float32(2) / np.float32(255), 128


def range_without_tail(width: int) -> Callable[[Array], tuple[float, float]]:
    """Extremes of whole vectors only."""

    def scale_of(x: Array) -> tuple[float, float]:
        flat = x.ravel()
        low, high = range_of(flat[: flat.size // width * width] if flat.size >= width else flat)
        scale = (high - low) / np.float32(255)
        return scale, np.rint(-low / scale) if scale else 0

    return scale_of


def divided_by_256(x: Array) -> tuple[float, float]:
    low, high = range_of(x)
    scale = (high - low) / np.float32(256)
    return scale, np.rint(-low / scale) if scale else 0


NARROW = ["quantizelinear-", "cast-"]
DYNAMIC = ["dynamicquantizelinear-"]
PLANTED = [
    Planted("another type", as_another_type, ["qlinearconv-10"], "wrong-type"),
    Planted("another rank", one_more_axis, ["qlinearmatmul-10"], "wrong-shape"),
    Planted("no output", no_output, ["qlinearmatmul-10"], "missing-output"),
    Planted("int32 difference wraps", difference_wraps, DEQUANTIZE, "wrap-around"),
    Planted("int32 difference in float32", difference_in_float32, DEQUANTIZE, "float32-arithmetic", "ULP away"),
    Planted("8-bit difference wraps", difference_of_8_bits, DEQUANTIZE, "wrap-around"),
    Planted("NaN is the greatest code", nan_is_the_greatest, QUANTIZE, "special-value"),
    Planted("output_dtype ignored", without_output_dtype, [*QUANTIZE, *DEQUANTIZE], "wrong-type"),
    Planted("saturate=0 ignored", saturates_always, NARROW, "float8-overflow"),
    Planted("float8 never saturates", saturates_never, NARROW, "float8-overflow"),
    Planted("float8e5m2 rounded up to NaN", rounded_up_by_bits("float8_e5m2"), NARROW, "float8-overflow"),
    Planted("the code of NaN cut to the largest float8e4m3fn", rounded_up_by_bits("float8_e4m3fn"), NARROW, "float8-overflow"),
    Planted("float8e5m2 without infinity", of_floats(lambda y, name: np.where(np.isinf(y), np.float32(np.nan), y), "float8_e5m2"), NARROW, "float8-overflow"),
    Planted("NaN becomes the largest float8", of_floats(lambda y, name: np.where(np.isnan(y), largest(name), y), *FLOAT8), NARROW, "special-value"),
    Planted("-0 becomes 0", of_floats(lambda y, name: np.where(y == 0, np.float32(0), y)), NARROW, "zero-sign"),
    Planted("subnormal numbers become 0", of_floats(lambda y, name: np.where(np.abs(y) < 2.0 ** LEAST[name], y * np.float32(0), y)), NARROW, "flush-to-zero"),
    Planted("subnormal scales become 0", scale_flushed, [*QUANTIZE, *DEQUANTIZE, "qlinearconv-10", "qlinearmatmul-"], "flush-to-zero"),
    Planted("nibbles of x swapped", lambda n: None if (x := n.inputs.get("x", n.inputs.get("input"))) is None or (y := nibbles_swapped(x)) is None else n.made(**{n.names[0]: y}), ["dequantizelinear-", "cast-"], "wrong-encoding"),
    Planted("nibbles of y swapped", lambda n: nibbles_swapped(n.expected), NARROW, "wrong-encoding"),
    Planted("quarters of y reversed", lambda n: quarters_reversed(n.expected), NARROW, "wrong-encoding"),
    Planted("the last nibble is lost", half_byte_lost, NARROW, "wrong-elements"),
    Planted("codes with the other sign", other_sign, ["dequantizelinear-", "qlinearconv-10", "qlinearmatmul-"], "wrong-encoding"),
    Planted("DequantizeLinear in 16 bits", product_in_output_type, DEQUANTIZE, "float-rounding"),
    Planted("signed codes without zero points", signed_without_zero_points, ["qlinearmatmul-10"], "wrong-encoding"),
    Planted("fnuz types with the other bias", one_bias_bit_lost, ["dequantizelinear-", "cast-"], "wrong-encoding"),
    Planted("range without zero", dynamic(without_zero), DYNAMIC, "wrong-range"),
    Planted("zero point by floor", dynamic(floor_zero_point), DYNAMIC, "wrong-range"),
    Planted("zero point half up", dynamic(half_up_zero_point), DYNAMIC, "wrong-range"),
    Planted("range in float64", dynamic(double_range), DYNAMIC, "wrong-range"),
    Planted("symmetric range", dynamic(symmetric), DYNAMIC, "wrong-range"),
    Planted("range without the tail of vectors of 8", dynamic(range_without_tail(8)), DYNAMIC, "wrong-range"),
    Planted("range without the tail of vectors of 32", dynamic(range_without_tail(32)), DYNAMIC, "wrong-range"),
    Planted("range divided by 256", dynamic(divided_by_256), DYNAMIC, "wrong-range"),
]  # fmt: skip
