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


_ONE = "The form is excluded: the scale has one element in a vector where the text has a scalar. qrun takes it as one; to refuse it is right."
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
        "The quotient is rounded to the even integer, the zero point is added, the sum saturates.",
        _f,
        _e,
        _s,
    )
    law(*_op, "Q1/open", DECISION, "The quotient is rounded once to the type of x and y_scale, then to an integer; with an int32 it is a real number.",
        _f, _e, note="No sentence says in which type one divides. In float32, in the type of x, or as real numbers, this case has different codes.")  # fmt: skip
    law(*_op, "G1", FORCED, "Round first, to the even integer at a tie, then add the zero point.", _f, _e, _s)
    law(*_op, "G4", FORCED, "A quotient beyond the type gives its least or greatest code.", _f, _s)
    law(*_op, "G4/infinite", IMPLIED, "An infinity gives the least or the greatest code.", _f, _s,
        note="An infinity is beyond every range.")  # fmt: skip
    law(*_op, "G5", DECISION, "NaN gives the least code.", _f, _s,
        note="No sentence says which code a NaN gives, nor what float4 makes of a NaN or an infinity. qrun gives the least integer code, and 6 in float4.")  # fmt: skip
    law(*_op, "G6", DECISION, "Zero, negative and infinite scales follow IEEE 754.", _f, note=SCALES)
    law(*_op, "G6/subnormal", DECISION, "Subnormal scales count.", _f, note=TINY)
    law(*_op, "G9/one", DECISION, "A scale of shape [1] holds for the whole tensor.",
        *(("It's a scalar, which means a per-tensor/layer quantization.",) if _v < 13 else
          ("can be either a scalar for per-tensor / per layer quantization, or a 1-D tensor for per-axis quantization",) if _v < 21
          else (_SCALAR, _AXIS)), note=_ONE)  # fmt: skip
    law(*_op, "G11/empty", FORCED, "A result without elements has x's shape.",
        "It has same shape as input 'x'." if _v < 21 else "It has same shape as input `x`.")  # fmt: skip
    law(*_op, "G12", FORCED, "Without a zero point: uint8 with zero point 0.", _f, _e, _s,
        "Default value is uint8 typed 0 if it's not specified." if _v < 13 else "Default is uint8 with zero point of 0 if it's not specified.")  # fmt: skip
    law(*_op, "Q2", FORCED, "x of type int32: the real quotient is rounded to an integer.", _f, _e, _s,
        "Constrain 'x' to float or int32 tensor." if _v < 19 else "Constrain 'x' to float, float16, bfloat16 or int32 tensor." if _v < 21
        else "The type of the input 'x'.")  # fmt: skip
    if _v >= 19:
        law(*_op, "Q2/int32", IMPLIED, "int32 by int32: the real quotient is rounded to an integer.", _f, _e, _s,
            note="A quotient that is rounded to the nearest even integer has not been cut before.")  # fmt: skip
        law(*_op, "Q6", IMPLIED, "float8: Cast's tables; round first, then compare with the largest number.", _f, _even(_v), _FLOAT8,
            Quote("Cast-19", _TABLE), Quote("Cast-19", _ROW),
            note="The page has no tables; those of Cast are meant, which have the same attribute. [x] is rounded as the last row says.")  # fmt: skip
        law(*_op, "Q6/infinite", DECISION, "float8 FNUZ: an infinity saturates.", _f, _FLOAT8,
            Quote("Cast-19", "| Inf | FLT_MAX | NaN | FLT_MAX | NaN |"), Quote("Cast-24", "| Inf | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |"),
            note="Cast's table says NaN until version 23 and the largest number from version 24 on; the formula says saturate. qrun saturates.")  # fmt: skip
    if _v >= 23:
        law(*_op, "Q2/e8m0", DECISION, "A scale of type float8e8m0: the real quotient is rounded once.", _f, _e, _DIVISION,
            note="A quotient in the precision of float8e8m0 would be a power of two. qrun takes the real quotient.")  # fmt: skip
        law(*_op, "Q1/type", IMPLIED, "The quotient is rounded to the type of y_scale or of precision, then to an integer.", _f, _e, _s,
            _DIVISION, note="x and y_scale are converted to that type, and their quotient is the one of IEEE 754 in it.")  # fmt: skip
        law(*_op, "Q6/float4", IMPLIED, "float4 and float6: the quotient is rounded once, to the nearest number and to even at ties, and saturates.", _f, _e,
            note="The list of ranges has neither; the largest number of the type is its end.")  # fmt: skip
    if _v >= 13:
        _length = (_AXIS,) if _v >= 21 else ("or a 1-D tensor for per-axis quantization",)
        _where = ("The axis of the quantization dimension of the input tensor." if _v < 21 else "The axis of the dequantizing dimension of the input tensor.")  # fmt: skip
        law(
            *_op,
            "Q4",
            FORCED,
            "A scale and a zero point for each index along axis; a scalar holds for all.",
            _f,
            _e,
            _s,
            *_length,
            _where,
        )
        law(*_op, "Q4/length", FORCED if _v >= 21 else IMPLIED, "A scale along an axis has the axis's length.", *_length,
            note="" if _v >= 21 else "One scale for each index of the axis: with another number of scales some have no index, or some indices no scale.")  # fmt: skip
        law(*_op, "Q4/shape", FORCED, "The zero point has the shape of the scale.",
            "The scale factor and zero point must have same shape" if _v < 21 else "In all cases, `y_zero_point` must have the same shape as `y_scale`.")  # fmt: skip
        law(*_op, "Q4/axis", FORCED, "axis is one of x's.",
            "Accepted range is [-r, r-1] where r = rank(input)." if _v < 21 else "Accepted range is `[-r, r-1]` where `r = rank(input)`.")  # fmt: skip
    if _v == 19:
        law(
            *_op,
            "Q4/vector",
            FORCED,
            "A vector along its one axis.",
            _f,
            _e,
            _s,
            "or a 1-D tensor for per-axis quantization",
        )
    if _v >= 21:
        law(*_op, "Q4/vector", DECISION, "A vector has a scale for each element or block of its one axis.", _RANK_1, _AXIS, _BLOCKS,
            note="One sentence says that a vector is quantized per tensor, the others make no exception for vectors. qrun looks at the shape of y_scale.")  # fmt: skip
        law(*_op, "Q5", FORCED, "A scale and a zero point for each block along axis; the last block may be shorter.", _f, _e, _s, _BLOCKS,
            "`y_scale` shape is `(D0, ..., ceil(Di/B), ..., Dn)`.", _TIMES)  # fmt: skip
        law(*_op, "Q5/scalar", FORCED, "A scalar scale is per tensor, whatever block_size says.", _f, _e, _s,
            "There are three supported quantization granularities, determined by the shape of `y_scale`.", _SCALAR, "Used only for blocked quantization.")  # fmt: skip
        law(*_op, "Q5/one-block", DECISION, "One block may have any size from the length of the axis on.", _BLOCKS, _RANGE,
            note="For one block the range divides by 0. qrun takes any block_size that covers the axis.")  # fmt: skip
        law(*_op, "Q5/range", FORCED, "block_size fits the number of blocks.", "Given `x` shape `(D0, ..., Di, ..., Dn)`, `y_scale` shape `(S0, ... Si, ...Sn)` and `axis=i`, " + _RANGE)  # fmt: skip
        law(*_op, "Q5/negative", FORCED, "block_size is positive.", "The block size is a positive integer.")
        law(*_op, "Q8", FORCED, "Integers of few bits are rounded and saturate as the wider ones do.", _f, _e, _s)
        law(*_op, "Q3", FORCED, "output_dtype is the type of y, whose zero point is 0 where none is given.", _f, _e, _s, "(Optional) The output data type.",
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
    law(*_op, "D1", FORCED, "The exact difference times the scale, rounded once to the output's type.", _f, *_precision)
    law(*_op, "D1/special", IMPLIED, "Infinities and NaN stay what they are, and what is beyond the type is an infinity.", _f, *_precision,
        Quote("Cast-13", "floating point: +/- infinity if OOR (out of range)."),
        note="As IEEE 754, and Cast for what is out of range.")  # fmt: skip
    law(*_op, "D1/open", DECISION, "The difference and the scale are multiplied in float32; the product is rounded to the output's type.", _f, *_precision,
        note="Read literally the product, and with it the difference, would be rounded to the 16 bits of the output, which no known runtime does; qrun does as they do."
        if _v >= 23 else "No sentence says in which type one multiplies: the product rounded once, or in several steps, has other bits here.")  # fmt: skip
    law(*_op, "G5", DECISION, "A NaN as scale gives NaN.", _f, note=SCALES)
    law(*_op, "G6", DECISION, "Zero, negative and infinite scales follow IEEE 754.", _f, note=SCALES)
    law(*_op, "G6/subnormal", DECISION, "Subnormal scales and results count.", _f, note=TINY)
    law(*_op, "D2", DECISION, "int32 with a zero point that is not 0, which the text excludes.", _f, _NO_ZERO,
        note="The form is excluded: to refuse it is right. qrun computes the formula with the zero point that is given.")  # fmt: skip
    law(*_op, "G9/one", DECISION, "A scale of shape [1] holds for the whole tensor.",
        *(("It's a scalar, which means a per-tensor/layer quantization.",) if _v < 13 else
          ("can be either a scalar for per-tensor / per layer quantization, or a 1-D tensor for per-axis quantization",) if _v < 21
          else ("a scalar for per-tensor/per-layer quantization, a 1-D tensor for per-axis quantization",)), note=_ONE)  # fmt: skip
    law(*_op, "G11/empty", FORCED, "A result without elements has x's shape.",
        "'x' and 'y' must have same shape." if _v < 13 else "`x` and `y` must have same shape." if _v < 21 else "`x` and `y` must have the same shape.")  # fmt: skip
    law(*_op, "G10", FORCED, "A zero point has the type of x.",
        "'x_zero_point' and 'x' must have same type." if _v < 13 else f"`x_zero_point` and `x` must have {'same' if _v < 21 else 'the same'} type.")  # fmt: skip
    if _v >= 13:
        _axis = (
            ("or a 1-D tensor for per-axis quantization",)
            if _v < 21
            else ("a 1-D tensor for per-axis quantization", Quote(f"QuantizeLinear-{_v}", _AXIS))
        )
        law(*_op, "Q4", FORCED, "A scale and a zero point for each index along axis.", _f, *_precision, *_axis,
            "The axis of the dequantizing dimension of the input tensor.")  # fmt: skip
        law(*_op, "Q4/length", FORCED if _v >= 21 else IMPLIED, "A scale along an axis has the axis's length.", *_axis,
            note="" if _v >= 21 else "One scale for each index of the axis: with another number of scales some have no index, or some indices no scale.")  # fmt: skip
        law(*_op, "Q4/shape", FORCED, "The zero point has the shape of the scale.",
            "`x_scale` and `x_zero_point` must have same shape" if _v < 21 else "`x_scale` and `x_zero_point` must have the same shape")  # fmt: skip
        law(*_op, "Q4/axis", FORCED, "axis is one of x's.",
            "Accepted range is [-r, r-1] where r = rank(input)." if _v < 19 else "Accepted range is `[-r, r-1]` where `r = rank(input)`.")  # fmt: skip
    if _v == 19:
        law(*_op, "Q4/vector", DECISION, "A vector has a scale for each element of its one axis.", _RANK_1,
            "or a 1-D tensor for per-axis quantization",
            note="One sentence says that a vector is dequantized per tensor, the other makes no exception for vectors.")  # fmt: skip
    if _v >= 21:
        _source = f"QuantizeLinear-{_v}"
        _see = "See QuantizeLinear for details on quantization granularity."
        law(*_op, "Q4/vector", DECISION, "A vector has a scale for each element or block of its one axis.", _see, Quote(_source, _RANK_1), Quote(_source, _BLOCKS),
            note="A sentence of QuantizeLinear says that a vector is quantized per tensor, the others make no exception for vectors.")  # fmt: skip
        law(*_op, "Q5", FORCED, "A scale and a zero point for each block along axis; the last block may be shorter.", _f, *_precision, _see,
            Quote(_source, _BLOCKS), Quote(_source, "`y_scale` shape is `(D0, ..., ceil(Di/B), ..., Dn)`."), _TIMES)  # fmt: skip
        law(*_op, "Q5/scalar", FORCED, "A scalar scale is per tensor, whatever block_size says.", _f, *_precision, _see,
            "a scalar for per-tensor/per-layer quantization", "Used only for blocked quantization.")  # fmt: skip
        law(*_op, "Q5/one-block", DECISION, "One block may have any size from the length of the axis on.", _RANGE,
            note="For one block the range divides by 0. qrun takes any block_size that covers the axis.")  # fmt: skip
        law(*_op, "Q5/range", FORCED, "block_size fits the number of blocks.", _RANGE)
        law(*_op, "Q5/negative", FORCED, "block_size is positive.", "The block size is a positive integer.")
        law(*_op, "Q8", FORCED, "Integers of few bits are numbers as the wider ones are.", _f, *_precision)
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
        law(*_op, "D1/type", IMPLIED, "The difference is rounded to the output's type, and multiplied in it.", _f, _OUTPUT,
            note="A multiplication in a type has factors of that type.")  # fmt: skip

# DynamicQuantizeLinear

_DYNAMIC = ("DynamicQuantizeLinear", (11,))
_BODY = (
    "Scale = Div (X_Range, Q_Max)",
    "Min_Scaled = Div (X_Min_Adjusted, Scale)",
    "y = QuantizeLinear (x, Scale, Zeropoint)",
)
law(*_DYNAMIC, "Y1", IMPLIED, "Every step of the function body is one float32 operation.",
    "y = saturate (round (x / y_scale) + y_zero_point)", "rounding to nearest ties to even.", *_BODY,
    note="The body's nodes are of type float; each rounds once.")  # fmt: skip
law(*_DYNAMIC, "Y1/subnormal", DECISION, "Subnormal numbers count.", *_BODY, note=TINY)
law(*_DYNAMIC, "Y2", DECISION, "Without a range: scale 1, zero point 0, codes 0.", *_BODY,
    note="The body divides 0 by 0, and no sentence says what follows. qrun takes the scale 1, as onnxruntime does.")  # fmt: skip

# Cast

for _v in (19, 21, 23, 24, 25, 28):
    _rows = (
        ("| Inf | FLT_MAX | NaN | FLT_MAX | NaN |",)
        if _v < 24
        else ("| Inf | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |",)
    )
    law("Cast", (_v,), "Q6", IMPLIED, "float8: round to the mantissa, then compare with the largest number.", _TABLE,
        r"| \[x\] > FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |", r"| \[x\] > FLT_MAX | NaN | NaN | Inf | NaN |", _ROW, *_rows,
        note="The tables have a row for each case; [x] is rounded as their last row says, to even at a tie.")  # fmt: skip
    if _v < 24:
        law("Cast", (_v,), "Q6/infinite", DECISION, "float8 FNUZ: an infinity saturates.", *_rows,
            Quote("Cast-24", "| Inf | FLT_MAX | FLT_MAX | FLT_MAX | FLT_MAX |"),
            note="The table says NaN, and from version 24 on the largest number. qrun saturates in all versions, against this version's text.")  # fmt: skip

    law("Cast", (_v,), "F11", IMPLIED, "To a float that has the number, it is that number.", "Conversion from a numerical type to any numerical type is always allowed.",
        note="A number that the other type has is not changed; infinities and NaN stay what they are.")  # fmt: skip
    law("Cast", (_v,), "F10", FORCED, "From integer to integer the higher bits are discarded.",
        "fixed point: when OOR, discard higher bits and reinterpret (with respect to two's complement representation for signed types).",
        "Conversion from a numerical type to any numerical type is always allowed.")  # fmt: skip
    law("Cast", (_v,), "F10/float", IMPLIED, "To an integer type that has the number, it is that number.",
        "Conversion from a numerical type to any numerical type is always allowed.", note="A number that the other type has is not changed.")  # fmt: skip
    law("Cast", (_v,), "F10/fraction", DECISION, "Fractions are cut off.", "User must be aware of precision loss and value change caused by range difference between two types.",
        note="No sentence says whether a fraction is cut off or rounded. qrun cuts, as the conversions of C do.")  # fmt: skip
    law("Cast", (_v,), "F10/range", DECISION, "Integers out of range become what x86 makes of them.", "fixed point: undefined if OOR.",
        note="The text leaves it undefined.")  # fmt: skip
    if _v >= 23:
        law("Cast", (_v,), "Q6/float4", IMPLIED, "float4 and float6: the nearest number, and the even one at a tie.", "Conversion from a numerical type to any numerical type is always allowed.",
            note="The text has no table for these types; all floats of ONNX are rounded to the nearest, ties to even.")  # fmt: skip
        law("Cast", (_v,), "Q6/float4-ends", DECISION, "float4 and float6: what is out of range, and NaN, becomes the largest number.", "floating point: +/- infinity if OOR (out of range).",
            note="These types have no infinity and no NaN, and no sentence says what stands for them. qrun saturates; NaN is the largest number.")  # fmt: skip
    if _v >= 24:
        law("Cast", (_v,), "Q6/e8m0", IMPLIED, "float8e8m0: the power of two that round_mode says.",
            "`up`: round to nearest value away from zero, `down`: round to nearest value towards zero, `nearest`: round to nearest value and ties round up.",
            note="The values of the type are the powers of two.")  # fmt: skip

# Graphs

for _v in (13, 21):
    _q, _d = f"QuantizeLinear-{_v}", f"DequantizeLinear-{_v}"
    for _section, _title in (
        ("G1", "The nodes as they are written: every float32 step is exact, and the last node rounds to even, then adds the zero point."),
        ("G7", "The nodes as they are written: every sum is exact in float32."),
    ):  # fmt: skip
        law("graph", (_v,), _section, IMPLIED, _title, Quote(_d, _product(_v)), Quote(_q, _formula(_v)), Quote(_q, _even(_v)),
            *((Quote("MatMul-13", NUMPY),) if _section == "G7" else ()),
            note="Scales are powers of two and codes are small, so that no float32 step rounds, in whatever order.")  # fmt: skip
