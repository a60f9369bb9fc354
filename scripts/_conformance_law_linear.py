"""The law of QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear and Cast, and of graphs of them with float
operators. See _conformance_law.py. The same sentence is worded differently in different versions."""

from __future__ import annotations

from _conformance_law import law
from _conformance_law_products import NUMPY, SCALES, TINY

from qrun.conform.suite import DECISION, FORCED, IMPLIED, Quote

# QuantizeLinear

_VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)


def _formula(version: int) -> str:
    if version < 19:
        return "The quantization formula is y = saturate ((x / y_scale) + y_zero_point)."
    space = " " if version < 21 else ""
    return f"The quantization formula is `y = saturate{space}((x / y_scale) + y_zero_point)`."


def _even(version: int) -> str:
    return (
        "For (x / y_scale), it's rounding to the nearest even."
        if version < 21
        else "For `(x / y_scale)`, it rounds to the nearest even."
    )


def _ends(version: int) -> str:
    if version < 21:
        return "For saturation, it saturates to [0, 255] if it's uint8, or [-128, 127] if it's int8."
    low = " - uint2: [0, 3] - int2: [-2, 1]" if version >= 25 else ""
    return f"Saturation is done according to: - uint16: [0, 65535] - int16: [-32768, 32767] - uint8: [0, 255] - int8: [-128, 127] - uint4: [0, 15] - int4: [-8, 7]{low}"


_ONE = "The text asks for a scalar, and this scale is a vector of one element, so refusing it is correct. qrun treats it as a scalar."
_AXIS = "Per-axis quantization: The scale must be a 1-D tensor, with the length of the quantization axis."
_BLOCKS = "Blocked quantization: The scale's shape is identical to the input's shape, except for one dimension, in which blocking is performed."
_TIMES = "The size of the quantization block (number of times every scale is replicated)."
_RANGE = "the accepted range is `[ceil(Di/Si), ceil(Di/(Si-1))-1]`"
_SCALAR = "Per-tensor (per-layer) quantization: `y_scale` is a scalar."
_DIVISION = "The type of `y_scale` determines the precision of the division operation between `x` and `y_scale`, unless the `precision` attribute is specified."
_FLOAT8 = "All cases are fully described in two tables inserted in the operator description."
_TABLE = "`[x]` means the value rounded to the target mantissa width."
_ROW = "| else | RNE | RNE | RNE | RNE |"
_RANK_1 = "When the rank of the input is 1, per-tensor quantization is applied, rendering the axis unnecessary in this scenario."
for _v in _VERSIONS:
    _op, _f, _e, _s = ("QuantizeLinear", (_v,)), _formula(_v), _even(_v), _ends(_v)
    law(
        *_op,
        "Q1",
        FORCED,
        "The quotient is rounded (ties to even), the zero point is added and the sum saturates.",
        _f,
        _e,
        _s,
    )
    law(*_op, "Q1/open", DECISION, "The quotient is rounded to the type of x and y_scale, then to an integer; for int32 x it is an exact real number.",
        _f, _e, note="The text does not say in which type to divide. Dividing in float32, in the type of x or exactly produces different codes in this case.")  # fmt: skip
    law(*_op, "G1", FORCED, "Round first (ties to even), then add the zero point.", _f, _e, _s)
    law(*_op, "G4", FORCED, "A quotient outside the range of the type becomes its smallest or largest code.", _f, _s)
    law(*_op, "G4/infinite", IMPLIED, "Infinity becomes the smallest or largest code.", _f, _s,
        note="Infinity is outside every range.")  # fmt: skip
    law(*_op, "G5", DECISION, "NaN becomes the smallest code.", _f, _s,
        note="The text does not say which code NaN becomes, or what NaN and infinity become in float4. qrun uses the smallest integer code, and 6 in float4.")  # fmt: skip
    law(*_op, "G6", DECISION, "Zero, negative and infinite scales follow IEEE 754.", _f, note=SCALES)
    law(*_op, "G6/subnormal", DECISION, "Subnormal scales are not flushed to 0.", _f, note=TINY)
    law(*_op, "G9/one", DECISION, "A scale of shape [1] applies to the whole tensor.",
        *(("It's a scalar, which means a per-tensor/layer quantization.",) if _v < 13 else
          ("can be either a scalar for per-tensor / per layer quantization, or a 1-D tensor for per-axis quantization",) if _v < 21
          else (_SCALAR, _AXIS)), note=_ONE)  # fmt: skip
    law(*_op, "G11/empty", FORCED, "An empty result has x's shape.",
        "It has same shape as input 'x'." if _v < 21 else "It has same shape as input `x`.")  # fmt: skip
    law(*_op, "G12", FORCED, "Without a zero point, y is uint8 and its zero point is 0.", _f, _e, _s,
        "Default value is uint8 typed 0 if it's not specified." if _v < 13 else "Default is uint8 with zero point of 0 if it's not specified.")  # fmt: skip
    law(*_op, "Q2", FORCED, "For int32 x, the exact quotient is rounded to an integer.", _f, _e, _s,
        "Constrain 'x' to float or int32 tensor." if _v < 19 else "Constrain 'x' to float, float16, bfloat16 or int32 tensor." if _v < 21
        else "The type of the input 'x'.")  # fmt: skip
    if _v >= 19:
        law(*_op, "Q2/int32", IMPLIED, "For int32 divided by int32, the exact quotient is rounded to an integer.", _f, _e, _s,
            note="A quotient that is rounded to the nearest integer cannot have been truncated before.")  # fmt: skip
        law(*_op, "Q6", IMPLIED, "float8 follows Cast's tables: round first, then compare with the largest number.", _f, _even(_v), _FLOAT8,
            Quote("Cast-19", _TABLE), Quote("Cast-19", _ROW),
            note="The page has no tables; it must mean the tables of Cast, which has the same attribute. [x] is rounded as the last row says.")  # fmt: skip
        law(*_op, "Q6/infinite", DECISION, "In float8 FNUZ types, infinity saturates.", _f, _FLOAT8,
            Quote("Cast-19", "| Inf | FLT_MAX | NaN | FLT_MAX | NaN |"), Quote("Cast-24", "| Inf | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |"),
            note="Cast's table says NaN up to version 23 and the largest number since version 24; the formula says saturate. qrun saturates.")  # fmt: skip
    if _v >= 23:
        law(*_op, "Q2/e8m0", DECISION, "With a float8e8m0 scale, the exact quotient is rounded once.", _f, _e, _DIVISION,
            note="In float8e8m0 precision every quotient would be a power of two. qrun uses the exact quotient.")  # fmt: skip
        law(*_op, "Q1/type", IMPLIED, "The quotient is rounded to the type of y_scale, or to precision if given, and then to an integer.", _f, _e, _s,
            _DIVISION, note="x and y_scale are converted to that type and divided in it as IEEE 754 specifies.")  # fmt: skip
        law(*_op, "Q6/float4", IMPLIED, "For float4 and float6, the quotient is rounded once to the nearest number (ties to even) and saturates.", _f, _e,
            note="The list of ranges includes neither type; each range ends at the largest number of the type.")  # fmt: skip
    if _v >= 13:
        _length = (_AXIS,) if _v >= 21 else ("or a 1-D tensor for per-axis quantization",)
        _where = ("The axis of the quantization dimension of the input tensor." if _v < 21 else "The axis of the dequantizing dimension of the input tensor.")  # fmt: skip
        law(
            *_op,
            "Q4",
            FORCED,
            "There is one scale and one zero point per index along axis; a scalar applies to all.",
            _f,
            _e,
            _s,
            *_length,
            _where,
        )
        law(*_op, "Q4/length", FORCED if _v >= 21 else IMPLIED, "A per-axis scale has the length of its axis.", *_length,
            note="" if _v >= 21 else "Each index along the axis has one scale; with a different number of scales, some indices would have no scale, or some scales no index.")  # fmt: skip
        law(*_op, "Q4/shape", FORCED, "The zero point has the same shape as the scale.",
            "The scale factor and zero point must have same shape" if _v < 21 else "In all cases, `y_zero_point` must have the same shape as `y_scale`.")  # fmt: skip
        law(*_op, "Q4/axis", FORCED, "axis is a valid axis of x.",
            "Accepted range is [-r, r-1] where r = rank(input)." if _v < 21 else "Accepted range is `[-r, r-1]` where `r = rank(input)`.")  # fmt: skip
    if _v == 19:
        law(
            *_op,
            "Q4/vector",
            FORCED,
            "A 1-D x is quantized along its only axis.",
            _f,
            _e,
            _s,
            "or a 1-D tensor for per-axis quantization",
        )
    if _v >= 21:
        law(*_op, "Q4/vector", DECISION, "A 1-D x has one scale per element or block.", _RANK_1, _AXIS, _BLOCKS,
            note="One sentence says that a 1-D tensor is quantized per tensor; the others make no such exception. qrun goes by the shape of y_scale.")  # fmt: skip
        law(*_op, "Q5", FORCED, "There is one scale and one zero point per block along axis; the last block may be shorter.", _f, _e, _s, _BLOCKS,
            "`y_scale` shape is `(D0, ..., ceil(Di/B), ..., Dn)`.", _TIMES)  # fmt: skip
        law(*_op, "Q5/scalar", FORCED, "A scalar scale means per-tensor quantization, whatever block_size says.", _f, _e, _s,
            "There are three supported quantization granularities, determined by the shape of `y_scale`.", _SCALAR, "Used only for blocked quantization.")  # fmt: skip
        law(*_op, "Q5/one-block", DECISION, "A single block may have any size that is at least the length of the axis.", _BLOCKS, _RANGE,
            note="For a single block, the formula of the range divides by 0. qrun accepts any block_size that covers the axis.")  # fmt: skip
        law(*_op, "Q5/range", FORCED, "block_size is consistent with the number of blocks.", "Given `x` shape `(D0, ..., Di, ..., Dn)`, `y_scale` shape `(S0, ... Si, ...Sn)` and `axis=i`, " + _RANGE)  # fmt: skip
        law(*_op, "Q5/negative", FORCED, "block_size is positive.", "The block size is a positive integer.")
        law(*_op, "Q8", FORCED, "Narrow integers round and saturate as wider ones do.", _f, _e, _s)
        law(*_op, "Q3", FORCED, "output_dtype is the type of y; an omitted zero point is 0.", _f, _e, _s, "(Optional) The output data type.",
            "with zero point of 0 if it's not specified.")  # fmt: skip

# DequantizeLinear


def _product(version: int) -> str:
    tick = "`" if version >= 13 else ""
    return f"The dequantization formula is {tick}y = (x - x_zero_point) * x_scale{tick}."


_OUTPUT = "The output type also determines the precision of the multiplication operation."
_NO_ZERO = "there's no zero point (zero point is supposed to be 0)"
for _v in _VERSIONS:
    _op, _f = ("DequantizeLinear", (_v,)), _product(_v)
    _precision = (_OUTPUT,) if _v >= 23 else ()
    law(
        *_op,
        "D1",
        FORCED,
        "The exact difference is multiplied by the scale and rounded once to the output type.",
        _f,
        *_precision,
    )
    law(*_op, "D1/special", IMPLIED, "Infinities and NaN pass through; a value too large for the type becomes infinity.", _f, *_precision,
        Quote("Cast-13", "floating point: +/- infinity if OOR (out of range)."),
        note="IEEE 754 says so; Cast says so for values that are out of range.")  # fmt: skip
    law(*_op, "D1/open", DECISION, "The difference is multiplied by the scale in float32, and the product is rounded to the output type.", _f, *_precision,
        note="Read literally, the text rounds both the difference and the product to the 16-bit output type. No known runtime does that, and neither does qrun."
        if _v >= 23 else "The text does not say in which type to multiply. Here, rounding once and rounding in several steps produce different bits.")  # fmt: skip
    law(*_op, "G5", DECISION, "With a scale of NaN, the result is NaN.", _f, note=SCALES)
    law(*_op, "G6", DECISION, "Zero, negative and infinite scales follow IEEE 754.", _f, note=SCALES)
    law(*_op, "G6/subnormal", DECISION, "Subnormal scales and results are not flushed to 0.", _f, note=TINY)
    law(*_op, "D2", DECISION, "x is int32 with a nonzero zero point; the text excludes this.", _f, _NO_ZERO,
        note="The text excludes this form, so refusing it is correct. qrun evaluates the formula with the given zero point.")  # fmt: skip
    law(*_op, "G9/one", DECISION, "A scale of shape [1] applies to the whole tensor.",
        *(("It's a scalar, which means a per-tensor/layer quantization.",) if _v < 13 else
          ("can be either a scalar for per-tensor / per layer quantization, or a 1-D tensor for per-axis quantization",) if _v < 21
          else ("a scalar for per-tensor/per-layer quantization, a 1-D tensor for per-axis quantization",)), note=_ONE)  # fmt: skip
    law(*_op, "G11/empty", FORCED, "An empty result has x's shape.",
        "'x' and 'y' must have same shape." if _v < 13 else "`x` and `y` must have same shape." if _v < 21 else "`x` and `y` must have the same shape.")  # fmt: skip
    law(*_op, "G10", FORCED, "A zero point has the same type as x.",
        "'x_zero_point' and 'x' must have same type." if _v < 13 else f"`x_zero_point` and `x` must have {'same' if _v < 21 else 'the same'} type.")  # fmt: skip
    if _v >= 13:
        _axis = (
            ("or a 1-D tensor for per-axis quantization",)
            if _v < 21
            else ("a 1-D tensor for per-axis quantization", Quote(f"QuantizeLinear-{_v}", _AXIS))
        )
        law(*_op, "Q4", FORCED, "There is one scale and one zero point per index along axis.", _f, *_precision, *_axis,
            "The axis of the dequantizing dimension of the input tensor.")  # fmt: skip
        law(*_op, "Q4/length", FORCED if _v >= 21 else IMPLIED, "A per-axis scale has the length of its axis.", *_axis,
            note="" if _v >= 21 else "Each index along the axis has one scale; with a different number of scales, some indices would have no scale, or some scales no index.")  # fmt: skip
        law(*_op, "Q4/shape", FORCED, "The zero point has the same shape as the scale.",
            "`x_scale` and `x_zero_point` must have same shape" if _v < 21 else "`x_scale` and `x_zero_point` must have the same shape")  # fmt: skip
        law(*_op, "Q4/axis", FORCED, "axis is a valid axis of x.",
            "Accepted range is [-r, r-1] where r = rank(input)." if _v < 19 else "Accepted range is `[-r, r-1]` where `r = rank(input)`.")  # fmt: skip
    if _v == 19:
        law(*_op, "Q4/vector", DECISION, "A 1-D x has one scale per element.", _RANK_1,
            "or a 1-D tensor for per-axis quantization",
            note="One sentence says that a 1-D tensor is dequantized per tensor; the other makes no such exception.")  # fmt: skip
    if _v >= 21:
        _source = f"QuantizeLinear-{_v}"
        _see = "See QuantizeLinear for details on quantization granularity."
        law(*_op, "Q4/vector", DECISION, "A 1-D x has one scale per element or block.", _see, Quote(_source, _RANK_1), Quote(_source, _BLOCKS),
            note="One sentence of QuantizeLinear says that a 1-D tensor is quantized per tensor; the others make no such exception.")  # fmt: skip
        law(*_op, "Q5", FORCED, "There is one scale and one zero point per block along axis; the last block may be shorter.", _f, *_precision, _see,
            Quote(_source, _BLOCKS), Quote(_source, "`y_scale` shape is `(D0, ..., ceil(Di/B), ..., Dn)`."), _TIMES)  # fmt: skip
        law(*_op, "Q5/scalar", FORCED, "A scalar scale means per-tensor quantization, whatever block_size says.", _f, *_precision, _see,
            "a scalar for per-tensor/per-layer quantization", "Used only for blocked quantization.")  # fmt: skip
        law(*_op, "Q5/one-block", DECISION, "A single block may have any size that is at least the length of the axis.", _RANGE,
            note="For a single block, the formula of the range divides by 0. qrun accepts any block_size that covers the axis.")  # fmt: skip
        law(*_op, "Q5/range", FORCED, "block_size is consistent with the number of blocks.", _RANGE)
        law(*_op, "Q5/negative", FORCED, "block_size is positive.", "The block size is a positive integer.")
        law(*_op, "Q8", FORCED, "Narrow integers dequantize as wider ones do.", _f, *_precision)
    if _v >= 23:
        law(
            *_op,
            "Q3",
            FORCED,
            "output_dtype is the type of y.",
            _f,
            _OUTPUT,
            "The output type is determined by the attribute `output_dtype`.",
        )
        law(*_op, "D1/type", IMPLIED, "The difference is rounded to the output type and multiplied in that type.", _f, _OUTPUT,
            note="To multiply in a type, both factors must have that type.")  # fmt: skip

# DynamicQuantizeLinear

_DYNAMIC = ("DynamicQuantizeLinear", (11,))
_BODY = (
    "Scale = Div (X_Range, Q_Max)",
    "Min_Scaled = Div (X_Min_Adjusted, Scale)",
    "y = QuantizeLinear (x, Scale, Zeropoint)",
)
law(*_DYNAMIC, "Y1", IMPLIED, "Each step of the function body is one float32 operation.",
    "y = saturate (round (x / y_scale) + y_zero_point)", "rounding to nearest ties to even.", *_BODY,
    note="The nodes of the body compute in float32; each rounds once.")  # fmt: skip
law(*_DYNAMIC, "Y1/exact", FORCED, "The stated formulas give every bit, as no step of them rounds but those that are stated to.",
    "y_scale = (maximum(0, max(x)) - minimum(0, min(x))) / (qmax - qmin)", "data range is adjusted to include 0.",
    "intermediate_zero_point = qmin - min(x)/y_scale", "y_zero_point = cast(round(saturate(intermediate_zero_point)))",
    "y = saturate (round (x / y_scale) + y_zero_point)", "for saturation, it saturates to [0, 255] if it's uint8",
    "rounding to nearest ties to even.")  # fmt: skip
law(*_DYNAMIC, "Y1/subnormal", DECISION, "Subnormal numbers are not flushed to 0.", *_BODY, note=TINY)
law(*_DYNAMIC, "Y2", DECISION, "If all inputs are 0, the scale is 1, the zero point 0 and all codes 0.", *_BODY,
    note="The body divides 0 by 0, and the text does not say what results. qrun uses a scale of 1, as onnxruntime does.")  # fmt: skip

# Cast

for _v in (19, 21, 23, 24, 25, 28):
    _rows = (
        ("| Inf | FLT_MAX | NaN | FLT_MAX | NaN |",)
        if _v < 24
        else ("| Inf | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |",)
    )
    law("Cast", (_v,), "Q6", IMPLIED, "For float8, round to the mantissa width, then compare with the largest number.", _TABLE,
        r"| \[x\] > FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |", r"| \[x\] > FLT_MAX | NaN | NaN | Inf | NaN |", _ROW, *_rows,
        note="The tables have a row for each case; [x] is rounded as the last row says, with ties to even.")  # fmt: skip
    if _v < 24:
        law("Cast", (_v,), "Q6/infinite", FORCED, "In float8 FNUZ types, infinity becomes NaN.", _TABLE, *_rows,
            "| -Inf | -FLT_MAX | NaN | -FLT_MAX | NaN |",
            note="Since version 24 the table says the largest number.")  # fmt: skip

    law("Cast", (_v,), "F11", IMPLIED, "A number that the target float type can represent is unchanged.", "Conversion from a numerical type to any numerical type is always allowed.",
        note="A number that the target type can represent does not change; infinities and NaN pass through.")  # fmt: skip
    law("Cast", (_v,), "F10", FORCED, "Casting integer to integer discards the higher bits.",
        "fixed point: when OOR, discard higher bits and reinterpret (with respect to two's complement representation for signed types).",
        "Conversion from a numerical type to any numerical type is always allowed.")  # fmt: skip
    law("Cast", (_v,), "F10/bool", FORCED, "To bool, 0 is False and all else True; from bool, False is 0 and True is 1.",
        "bool: zero to False; nonzero to True.", "fixed point: `{1, 0}`.")  # fmt: skip
    law("Cast", (_v,), "F10/float", IMPLIED, "A number that the target integer type can represent is unchanged.",
        "Conversion from a numerical type to any numerical type is always allowed.", note="A number that the target type can represent does not change.")  # fmt: skip
    law("Cast", (_v,), "F10/fraction", DECISION, "Fractions are truncated.", "User must be aware of precision loss and value change caused by range difference between two types.",
        note="The text does not say whether fractions are truncated or rounded. qrun truncates, as C conversions do.")  # fmt: skip
    law("Cast", (_v,), "F10/range", DECISION, "Values outside the integer range convert as on x86.", "fixed point: undefined if OOR.",
        note="The text leaves the result undefined.")  # fmt: skip
    if _v >= 23:
        law("Cast", (_v,), "Q6/float4", IMPLIED, "float4 and float6 round to the nearest number, ties to even.", "Conversion from a numerical type to any numerical type is always allowed.",
            note="The text has no table for these types; all ONNX floats round to nearest, ties to even.")  # fmt: skip
        law("Cast", (_v,), "Q6/float4-ends", DECISION, "In float4 and float6, NaN and values that are out of range become the largest number.", "floating point: +/- infinity if OOR (out of range).",
            note="These types have no infinity and no NaN, and the text does not say what replaces them. qrun saturates and converts NaN to the largest number.")  # fmt: skip
    if _v >= 24:
        law("Cast", (_v,), "Q6/e8m0", IMPLIED, "float8e8m0 rounds to the power of two that round_mode selects.",
            "`up`: round to nearest value away from zero, `down`: round to nearest value towards zero, `nearest`: round to nearest value and ties round up.",
            note="The values of this type are powers of two.")  # fmt: skip

# Graphs

for _v in (13, 21):
    _q, _d = f"QuantizeLinear-{_v}", f"DequantizeLinear-{_v}"
    for _section, _title in (
        ("G1", "Nodes run as written: every float32 step is exact, and the last node rounds (ties to even), then adds the zero point."),
        ("G7", "Nodes run as written: every sum is exact in float32."),
    ):  # fmt: skip
        law("graph", (_v,), _section, IMPLIED, _title, Quote(_d, _product(_v)), Quote(_q, _formula(_v)), Quote(_q, _even(_v)),
            *((Quote("MatMul-13", NUMPY),) if _section == "G7" else ()),
            note="The scales are powers of two and the codes are small, so no float32 step rounds, whatever the order.")  # fmt: skip
