"""The law of QLinearConv, ConvInteger, QLinearMatMul and MatMulInteger. See _conformance_law.py.

A zero point is a term of the standard: the page of DequantizeLinear defines it. numpy.matmul is named by the pages of
the products. But no page has a formula of a convolution, so that convolutions are implied at most.
"""

from __future__ import annotations

from _conformance_law import law

from qrun.conform.suite import DECISION, FORCED, IMPLIED, Quote

MEANS = Quote("DequantizeLinear-10", "The dequantization formula is y = (x - x_zero_point) * x_scale.")
CODES = Quote("QuantizeLinear-10", "The quantization formula is y = saturate ((x / y_scale) + y_zero_point).")
ENDS = Quote(
    "QuantizeLinear-10", "For saturation, it saturates to [0, 255] if it's uint8, or [-128, 127] if it's int8."
)
TO_EVEN = Quote("QuantizeLinear-10", "For (x / y_scale), it's rounding to the nearest even.")
SAME_SHAPE = "Each scale and zero-point pair must have same shape."
W_FORM = "It could be a scalar or a 1-D tensor, which means a per-tensor/layer or per output channel quantization."
W_LENGTH = "If it's a 1-D tensor, its number of elements should be equal to the number of output channels (M)"
X_FORM = "Zero point tensor for input 'x'. It's a scalar, which means a per-tensor/layer quantization."
PADS = "The value represent the number of pixels added to the beginning and end part of the corresponding axis."
SAME = "SAME_UPPER or SAME_LOWER mean pad the input so that `output_shape[i] = ceil(input_shape[i] / strides[i])` for each axis `i`."
SPLIT = "In case the padding is an odd number, the extra padding is added at the end for SAME_UPPER and at the beginning for SAME_LOWER."
SIZES = "The output dimensions are functions of the kernel size, stride size, and pad lengths."
GROUPS = "number of groups input channels and output channels are divided into. default is 1."
CHANNELS = "X.shape[1] == (W.shape[1] * group) == C (assuming zero based indices for the shape array)."
CONVOLVE = "The convolution operator consumes a quantized input tensor, its scale and zero point, a quantized filter, its scale and zero point, and output's scale and zero point, and computes the quantized output."
SUM = "The integer convolution operator consumes an input tensor, its zero-point, a filter, and its zero-point, and computes the output."
SUM_LIMIT = "The production MUST never overflow. The accumulation may overflow if and only if in 32 bits."
NUMPY = "Matrix product that behaves like [numpy.matmul](https://numpy.org/doc/stable/reference/generated/numpy.matmul.html)."
REAL = "No page states the formula of a convolution, but the word has one meaning in ONNX, and a code represents the number that DequantizeLinear returns. Away from ties, every sound implementation produces the same code."
WRAPS = "The text does not say what happens when a sum exceeds int32. qrun wraps it around in two's complement, as the int32 arithmetic of all known runtimes does."
NOTHING = "The text does not cover a length of 0. An empty sum is 0."
SCALES = "The text neither forbids nor defines scales that are not positive and finite. qrun follows IEEE 754."
NAN = "The text does not say which code NaN becomes. qrun uses the smallest code."
TINY = "The text does not say whether subnormal numbers are kept or flushed to 0. qrun keeps them."
ONE = "The text asks for a scalar, and this parameter is a vector of one element, so refusing it is correct. qrun treats it as a scalar."

# QLinearConv

_CONV = ("QLinearConv", (10,))
law(*_CONV, "G3", IMPLIED, "The exact real sum, divided by the output's scale, rounds to the nearest code.",
    CONVOLVE, MEANS, CODES, note=REAL)  # fmt: skip
law(*_CONV, "C1", IMPLIED, "x, w and y may each be int8 or uint8.", CONVOLVE, MEANS, CODES,
    "Constrain input type to 8-bit integer tensor.", "Constrain filter type to 8-bit integer tensor.",
    "Constrain output type to 8-bit integer tensor.", note=REAL)  # fmt: skip
law(*_CONV, "C2", IMPLIED, "w_scale and w_zero_point are scalars or hold one value per output channel.", CONVOLVE,
    SAME_SHAPE, W_FORM, W_LENGTH, MEANS, CODES, note=REAL)  # fmt: skip
law(*_CONV, "C2/mixed", DECISION, "w_scale and w_zero_point have different shapes; the text forbids this.", SAME_SHAPE,
    "It means they must be either scalars (per tensor) or 1-D tensors (per output channel).",
    note="The text excludes this form, so refusing it is correct. qrun applies a scalar to all output channels.")  # fmt: skip
law(*_CONV, "G9/one", DECISION, "A per-tensor parameter has shape [1] instead of being a scalar.",
    "Scale tensor for input 'x'. It's a scalar, which means a per-tensor/layer quantization.", X_FORM, W_LENGTH,
    note=ONE)  # fmt: skip
law(*_CONV, "G1", DECISION, "Round first (ties to even), then add the zero point.",
    "and computes the quantized output.", Quote("QLinearMatMul-10", "For (x / y_scale), it is rounding to nearest ties to even."),
    note="The text of QLinearConv does not mention rounding. qrun rounds as QLinearMatMul and QuantizeLinear specify.")  # fmt: skip
law(*_CONV, "G2", DECISION, "Ties round to the even integer.", "and computes the quantized output.", TO_EVEN,
    note="The text of QLinearConv does not mention rounding. qrun rounds as QLinearMatMul and QuantizeLinear specify.")  # fmt: skip
law(*_CONV, "G4", IMPLIED, "A result outside the range of the type becomes its smallest or largest code.", CONVOLVE, CODES, ENDS,
    note="For a value outside the range, the nearest code is the smallest or largest one, however far away the value is.")  # fmt: skip
law(*_CONV, "G7", IMPLIED, "Products and sums are exact.", CONVOLVE,
    "Bias must be quantized using scale = x_scale * w_scale and zero_point = 0", MEANS, CODES, note=REAL)  # fmt: skip
law(*_CONV, "G7/wrap", DECISION, "The sum, bias included, wraps around to int32.", CONVOLVE,
    Quote("ConvInteger-10", "The accumulation may overflow if and only if in 32 bits."), note=WRAPS)  # fmt: skip
law(
    *_CONV,
    "G11/sum",
    DECISION,
    "With no input channels, the sum is the bias, or 0 without a bias.",
    CONVOLVE,
    note=NOTHING,
)
for _op, _what in (("QLinearConv", CONVOLVE), ("ConvInteger", SUM)):
    law(_op, (10,), "G8", IMPLIED, "Padding represents the real number 0: its code is x_zero_point.", _what, PADS, MEANS,
        note="A convolution pads its input with zeros, and the code for 0 is the zero point. ONNX's own test_convinteger_with_padding confirms this.")  # fmt: skip
    law(_op, (10,), "C4", IMPLIED, "SAME adds just enough padding; an odd element goes at the end (SAME_UPPER) or the beginning (SAME_LOWER).", SAME, SPLIT,
        note="This is the smallest padding that produces the output shape. ONNX's own test_conv_with_autopad_same confirms it for strides above 1.")  # fmt: skip
    law(_op, (10,), "C4/negative", DECISION, "SAME never crops the input.", SAME,
        "it can take any value greater than or equal to 0.",
        note="If the stride exceeds the kernel size, no padding is needed, but some runtimes compute a negative padding. qrun does not.")  # fmt: skip
    law(_op, (10,), "G11/empty", IMPLIED, "An empty result keeps its shape and type.", SIZES,
        note="The shape follows from the input shapes, and there are no values to disagree about.")  # fmt: skip
    law(_op, (10,), "G10", FORCED, "A zero point has the same type as its tensor.",
        *(("Each input or output and its related zero point must have same type.",) if _op == "QLinearConv" else
          ("Constrain input x and its zero point data type to 8-bit integer tensor.",
           "Constrain input w and its zero point data type to 8-bit integer tensor.")))  # fmt: skip
    law(_op, (10,), "C2/length", FORCED, "A per-channel parameter of w has one element per output channel.", W_LENGTH)
    law(_op, (10,), "C2/rank", FORCED, "Each parameter of w is a scalar or 1-D.", W_FORM)
    law(_op, (10,), "C2/channels", FORCED, "x has as many channels as w's second axis times group.", CHANNELS)
    law(_op, (10,), "C2/group", IMPLIED, "The number of output channels is a multiple of group.", GROUPS,
        note="Channels can be split into equal groups only if their number is a multiple of group.")  # fmt: skip
    law(_op, (10,), "C2/kernel-shape", IMPLIED, "kernel_shape equals the spatial shape of w.",
        "The shape of the convolution kernel. If not present, should be inferred from input 'w'.",
        note="If both are present and differ, one of them is wrong.")  # fmt: skip
    law(_op, (10,), "C2/weights", FORCED, "w has the same rank as x.",
        "For more than 2 dimensions, the kernel shape will be (M x C/group x k1 x k2 x ... x kn), where (k1 x k2 x ... kn) is the dimension of the kernel.",
        "has size (M x C/group x kH x kW)")  # fmt: skip
    law(_op, (10,), "C4/pads", FORCED, "pads and auto_pad are mutually exclusive.",
        "This attribute cannot be used simultaneously with auto_pad attribute.")  # fmt: skip
    law(_op, (10,), "C4/stride", IMPLIED, "A stride is at least 1.", "Stride along each spatial axis.", SIZES,
        note="The output has one element per step of the stride; with a stride of 0 the number of steps is undefined.")  # fmt: skip
    law(_op, (10,), "C5", IMPLIED, "The dilated kernel fits into the padded input.", SIZES,
        "dilation value along each spatial axis of the filter.",
        note="If the kernel does not fit, the output size is below 1 along that axis, and no sentence turns it into 0.")  # fmt: skip
law(*_CONV, "C3", FORCED, "The bias is 1-D, with one element per output channel.",
    "Optional 1D bias to be added to the convolution, has size of M.")  # fmt: skip
law(*_CONV, "G12", IMPLIED, "The zero points are required.", CONVOLVE,
    "Optional 1D bias to be added to the convolution",
    note="In the schema, the bias is the only optional input.")  # fmt: skip

# ConvInteger

_INTEGER = ("ConvInteger", (10,))
_SUMS = "No page states the formula of a convolution, but the word has one meaning in ONNX; the zero point is what DequantizeLinear subtracts."
law(*_INTEGER, "G7", IMPLIED, "Products and sums are exact.", SUM, SUM_LIMIT, MEANS, note=_SUMS)
law(*_INTEGER, "G7/wrap", DECISION, "A sum that exceeds int32 wraps around.", SUM_LIMIT, note=WRAPS)
law(*_INTEGER, "C7", IMPLIED, "w_zero_point may hold one value per output channel.", SUM, W_FORM, W_LENGTH, MEANS, note=_SUMS)  # fmt: skip
law(*_INTEGER, "G12", IMPLIED, "An omitted zero point is 0.", SUM, SUM_LIMIT,
    "Zero point tensor for input 'x'. It's optional and default value is 0.",
    "Zero point tensor for input 'w'. It's optional and default value is 0.", note=_SUMS)  # fmt: skip
law(*_INTEGER, "G9/one", DECISION, "A per-tensor zero point has shape [1] instead of being a scalar.",
    "It's a scalar, which means a per-tensor/layer quantization.", W_LENGTH, note=ONE)  # fmt: skip
law(*_INTEGER, "G11/sum", DECISION, "With no input channels, the sum is 0.", SUM, note=NOTHING)

# QLinearMatMul

_MATMUL = ("QLinearMatMul", (10, 21))
_FORMULA = "The quantization formula is y = saturate((x / y_scale) + y_zero_point)."
_EVEN = "For (x / y_scale), it is rounding to nearest ties to even."
_INPUTS = "It consumes two quantized input tensors, their scales and zero points, scale and zero point of output, and computes the quantized output."
_FORMS = "They must be either scalar (per tensor) or N-D tensor (per row for 'a' and per column for 'b')."
_VECTORS = "If the input is 2D of shape [M, K] then zero point and scale tensor may be an M element vector [v_1, v_2, ..., v_M] for per row quantization and K element vector of shape [v_1, v_2, ..., v_K] for per column quantization."
_WHOLE = "If the input is N-D tensor with shape [D1, D2, M, K] then zero point and scale tensor may have shape [D1, D2, M, 1] for per row quantization and shape [D1, D2, 1, K] for per column quantization."
_LIMIT = "Production must never overflow, and accumulation may overflow if and only if in 32 bits."
_EQUAL = "Scale and zero point must have same shape."
law(*_MATMUL, "G3", FORCED, "The exact real product is divided by the output's scale and rounded once; then the zero point is added.",
    NUMPY, _INPUTS, _FORMULA, _EVEN, MEANS)  # fmt: skip
law(*_MATMUL, "C1", FORCED, "a, b and y may each have their own type.", NUMPY, _INPUTS, _FORMULA, _EVEN, MEANS)
law(*_MATMUL, "G1", FORCED, "Round first, then add the zero point.", _FORMULA, _EVEN)
law(*_MATMUL, "G2", FORCED, "Ties round to the even integer.", _FORMULA, _EVEN)
law(*_MATMUL, "M1", FORCED, "a's parameters are per row, b's are per column.", _EQUAL, _FORMS, _VECTORS, _WHOLE, _FORMULA,
    _EVEN, MEANS, note="In that sentence, K is the number of columns of the input concerned; for b, that is N.")  # fmt: skip
law(*_MATMUL, "M1/matrix", IMPLIED, "The parameters of a 2-D input have shape [M, 1] or [1, N].", _EQUAL, _FORMS, _VECTORS, _WHOLE, _FORMULA,
    _EVEN, MEANS, note="This is the sentence about N-D tensors, applied to two axes.")  # fmt: skip
law(*_MATMUL, "M1/mixed", DECISION, "A scale and its zero point have different shapes; the text forbids this.", _EQUAL,
    note="The text excludes this form, so refusing it is correct. qrun broadcasts each on its own.")  # fmt: skip
law(*_MATMUL, "M1/other", DECISION, "A parameter has a shape the text does not list.", _FORMS, _VECTORS, _WHOLE,
    note="The text excludes this form, so refusing it is correct. qrun accepts any shape that broadcasts along rows or columns.")  # fmt: skip
law(*_MATMUL, "M1/length", FORCED, "A parameter vector of a has one element per row of a.", _VECTORS)
law(*_MATMUL, "M1/product", IMPLIED, "a has as many columns as b has rows.", NUMPY,
    note="numpy.matmul raises ValueError otherwise.")  # fmt: skip
law(*_MATMUL, "G3/half", DECISION, "With float16 or bfloat16 scales, the exact real product is rounded once.", _INPUTS, _FORMULA, _EVEN, MEANS,
    note="The text does not say in which type to multiply and divide by the scales. qrun computes with exact real numbers; computing in the scales' own type is just as valid and can produce other codes.")  # fmt: skip
law(*_MATMUL, "M2", DECISION, "float8 operands are multiplied and added exactly.", _INPUTS, _FORMULA,
    note="The text does not say how to multiply, add or round float8 numbers. qrun computes exactly.")  # fmt: skip
law(*_MATMUL, "G9/one", DECISION, "A per-tensor parameter has shape [1] instead of being a scalar.", _FORMS, _VECTORS,
    note=ONE)  # fmt: skip
law(
    *_MATMUL,
    "G4",
    FORCED,
    "A result outside the range of the type becomes its smallest or largest code.",
    _FORMULA,
    _INPUTS,
    MEANS,
)
law(*_MATMUL, "G7", FORCED, "Products and sums are exact.", NUMPY, _LIMIT, _INPUTS, _FORMULA, _EVEN, MEANS)
law(*_MATMUL, "G7/wrap", DECISION, "A sum that exceeds int32 wraps around.", _LIMIT, note=WRAPS)
law(*_MATMUL, "G11/sum", IMPLIED, "With an inner dimension of 0, the product is 0 and its code is the zero point.", NUMPY, _FORMULA,
    note="numpy.matmul returns 0 when there is nothing to add.")  # fmt: skip
law(*_MATMUL, "G11/empty", FORCED, "An empty result has the shape that numpy.matmul returns.", NUMPY)
law("QLinearMatMul", (10,), "G10", FORCED, "A zero point has the same type as its tensor.",
    "Constrain input a and its zero point data type to 8-bit integer tensor.",
    "Constrain input b and its zero point data type to 8-bit integer tensor.")  # fmt: skip
law("QLinearMatMul", (21,), "G10", FORCED, "A zero point has the same type as its tensor.", "The type of input a and its zeropoint.",
    "The type of input b and its zeropoint.")  # fmt: skip
for _op, _versions, _about in (("QLinearConv", (10,), CONVOLVE), ("QLinearMatMul", (10, 21), _FORMULA)):
    law(_op, _versions, "G5", DECISION, "NaN becomes the smallest code.", _about, note=NAN)
    law(_op, _versions, "G6", DECISION, "Zero, negative and infinite scales follow IEEE 754.", _about, note=SCALES)
    law(_op, _versions, "G6/subnormal", DECISION, "Subnormal scales are not flushed to 0.", _about, note=TINY)

# MatMulInteger

_WHOLES = ("MatMulInteger", (10,))
_A = "If the input is 2D of shape [M, K] then zero point tensor may be an M element vector [zp_1, zp_2, ..., zp_M]. If the input is N-D tensor with shape [D1, D2, M, K] then zero point tensor may have shape [D1, D2, M, 1]."
_B = "If the input is 2D of shape [K, N] then zero point tensor may be an N element vector [zp_1, zp_2, ..., zp_N]. If the input is N-D tensor with shape [D1, D2, K, N] then zero point tensor may have shape [D1, D2, 1, N]."
law(*_WHOLES, "G7", FORCED, "Products and sums are exact.", NUMPY, SUM_LIMIT, MEANS)
law(*_WHOLES, "G7/wrap", DECISION, "A sum that exceeds int32 wraps around.", SUM_LIMIT, note=WRAPS)
law(*_WHOLES, "G12", FORCED, "An omitted zero point is 0.", NUMPY, SUM_LIMIT,
    "Zero point tensor for input 'A'. It's optional and default value is 0.",
    "Zero point tensor for input 'B'. It's optional and default value is 0.", MEANS)  # fmt: skip
law(*_WHOLES, "M1", FORCED, "A's zero points are per row, B's are per column.", NUMPY, SUM_LIMIT, _A, _B, MEANS)
law(*_WHOLES, "M1/matrix", IMPLIED, "The zero points of a 2-D input have shape [M, 1] or [1, N].", NUMPY, SUM_LIMIT, _A, _B, MEANS,
    note="This is the sentence about N-D tensors, applied to two axes.")  # fmt: skip
law(*_WHOLES, "M1/other", DECISION, "A zero point has a shape the text does not list.", _A, _B,
    note="The text excludes this form, so refusing it is correct. qrun accepts any shape that broadcasts along rows or columns.")  # fmt: skip
law(*_WHOLES, "M1/length", FORCED, "A zero-point vector of A has one element per row of A.", _A)
law(*_WHOLES, "M1/product", IMPLIED, "A has as many columns as B has rows.", NUMPY,
    note="numpy.matmul raises ValueError otherwise.")  # fmt: skip
law(*_WHOLES, "G9/one", DECISION, "A per-tensor zero point has shape [1] instead of being a scalar.",
    "Scalar refers to per tensor quantization whereas N-D refers to per row quantization.", _A, note=ONE)  # fmt: skip
law(*_WHOLES, "G11/sum", IMPLIED, "With an inner dimension of 0, the product is 0.", NUMPY,
    note="numpy.matmul returns 0 when there is nothing to add.")  # fmt: skip
law(*_WHOLES, "G11/empty", FORCED, "An empty result has the shape that numpy.matmul returns.", NUMPY)
