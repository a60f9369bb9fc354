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
REAL = "No page has the formula of a convolution; the word has one meaning in ONNX, and a code stands for the number that DequantizeLinear gives. Far from a tie every sound arithmetic gives the same code."
WRAPS = "No sentence says what a sum beyond int32 gives. qrun wraps it in two's complement, as the int32 arithmetic of all known runtimes does."
NOTHING = "No sentence speaks of a length of 0. A sum of no products is 0."
SCALES = "No sentence forbids or defines scales that are not positive and finite. qrun takes the steps of IEEE 754."
NAN = "No sentence says which code NaN gives. qrun gives the least."
TINY = "No sentence says whether subnormal numbers count or are flushed to 0. qrun counts them."
ONE = "The form is excluded: the parameter has one element in a vector where the text has a scalar. qrun takes it as one; to refuse it is right."

# QLinearConv

_CONV = ("QLinearConv", (10,))
law(*_CONV, "G3", IMPLIED, "The real sum, in units of the output's scale, becomes the nearest code.",
    CONVOLVE, MEANS, CODES, note=REAL)  # fmt: skip
law(*_CONV, "C1", IMPLIED, "x, w and y have a type each, int8 or uint8.", CONVOLVE, MEANS, CODES,
    "Constrain input type to 8-bit integer tensor.", "Constrain filter type to 8-bit integer tensor.",
    "Constrain output type to 8-bit integer tensor.", note=REAL)  # fmt: skip
law(*_CONV, "C2", IMPLIED, "w_scale and w_zero_point are scalars, or have a value for each output channel.", CONVOLVE,
    SAME_SHAPE, W_FORM, W_LENGTH, MEANS, CODES, note=REAL)  # fmt: skip
law(*_CONV, "C2/mixed", DECISION, "w_scale and w_zero_point have different shapes, which the text forbids.", SAME_SHAPE,
    "It means they must be either scalars (per tensor) or 1-D tensors (per output channel).",
    note="The form is excluded: to refuse it is right. qrun takes a scalar to hold for all output channels.")  # fmt: skip
law(*_CONV, "G9/one", DECISION, "A parameter of the whole tensor has shape [1] instead of being a scalar.",
    "Scale tensor for input 'x'. It's a scalar, which means a per-tensor/layer quantization.", X_FORM, W_LENGTH,
    note=ONE)  # fmt: skip
law(*_CONV, "G1", DECISION, "Round first, to the even integer at a tie, then add the zero point.",
    "and computes the quantized output.", Quote("QLinearMatMul-10", "For (x / y_scale), it is rounding to nearest ties to even."),
    note="QLinearConv has no word about rounding. qrun rounds as QLinearMatMul and QuantizeLinear say.")  # fmt: skip
law(*_CONV, "G2", DECISION, "Ties go to the even integer.", "and computes the quantized output.", TO_EVEN,
    note="QLinearConv has no word about rounding. qrun rounds as QLinearMatMul and QuantizeLinear say.")  # fmt: skip
law(*_CONV, "G4", IMPLIED, "A result beyond the type gives the least or the greatest code.", CONVOLVE, CODES, ENDS,
    note="A number beyond all codes has a nearest code, the least or the greatest, however far it lies.")  # fmt: skip
law(*_CONV, "G7", IMPLIED, "Products and sums are exact.", CONVOLVE,
    "Bias must be quantized using scale = x_scale * w_scale and zero_point = 0", MEANS, CODES, note=REAL)  # fmt: skip
law(*_CONV, "G7/wrap", DECISION, "The sum with the bias wraps to int32.", CONVOLVE,
    Quote("ConvInteger-10", "The accumulation may overflow if and only if in 32 bits."), note=WRAPS)  # fmt: skip
law(*_CONV, "G11/sum", DECISION, "Without channels the sum is the bias, or 0.", CONVOLVE, note=NOTHING)
for _op, _what in (("QLinearConv", CONVOLVE), ("ConvInteger", SUM)):
    law(_op, (10,), "G8", IMPLIED, "Padding counts as the real number 0, the code x_zero_point.", _what, PADS, MEANS,
        note="A convolution pads the tensor that it convolves with zeros. The code of 0 is the zero point; ONNX's own test_convinteger_with_padding shows it.")  # fmt: skip
    law(_op, (10,), "C4", IMPLIED, "SAME pads what is missing; the odd one is at the end or at the beginning.", SAME, SPLIT,
        note="The least padding that gives this shape. ONNX's own test_conv_with_autopad_same shows it for strides.")  # fmt: skip
    law(_op, (10,), "C4/negative", DECISION, "SAME never cuts elements off.", SAME,
        "it can take any value greater than or equal to 0.",
        note="Where the stride is longer than the kernel, the shape is right without padding, and some runtimes pad a negative number. qrun does not.")  # fmt: skip
    law(_op, (10,), "G11/empty", IMPLIED, "A result without elements has its shape and type.", SIZES,
        note="The shape follows from the shapes of the inputs; there are no values to dispute.")  # fmt: skip
    law(_op, (10,), "G10", FORCED, "A zero point has the type of its tensor.",
        *(("Each input or output and its related zero point must have same type.",) if _op == "QLinearConv" else
          ("Constrain input x and its zero point data type to 8-bit integer tensor.",
           "Constrain input w and its zero point data type to 8-bit integer tensor.")))  # fmt: skip
    law(_op, (10,), "C2/length", FORCED, "A vector of w has as many elements as there are output channels.", W_LENGTH)
    law(_op, (10,), "C2/rank", FORCED, "A parameter of w is a scalar or 1-D.", W_FORM)
    law(_op, (10,), "C2/channels", FORCED, "The channels of x are those of w times group.", CHANNELS)
    law(_op, (10,), "C2/group", IMPLIED, "group divides the output channels.", GROUPS,
        note="Channels that a number does not divide are not divided into that number of groups.")  # fmt: skip
    law(_op, (10,), "C2/kernel-shape", IMPLIED, "kernel_shape is the shape of w's kernel.",
        "The shape of the convolution kernel. If not present, should be inferred from input 'w'.",
        note="Where both are present and differ, one of them is not the shape of the kernel.")  # fmt: skip
    law(_op, (10,), "C2/weights", FORCED, "w has as many axes as x.",
        "For more than 2 dimensions, the kernel shape will be (M x C/group x k1 x k2 x ... x kn), where (k1 x k2 x ... kn) is the dimension of the kernel.",
        "has size (M x C/group x kH x kW)")  # fmt: skip
    law(_op, (10,), "C4/pads", FORCED, "pads and auto_pad exclude each other.",
        "This attribute cannot be used simultaneously with auto_pad attribute.")  # fmt: skip
    law(_op, (10,), "C4/stride", IMPLIED, "A stride is at least 1.", "Stride along each spatial axis.", SIZES,
        note="The output has one element for each step of a stride: for a stride of 0 there is no number of them.")  # fmt: skip
    law(_op, (10,), "C5", IMPLIED, "The dilated kernel fits into the padded input.", SIZES,
        "dilation value along each spatial axis of the filter.",
        note="A kernel that fits nowhere gives an output of less than one element along the axis, and no sentence makes it 0.")  # fmt: skip
law(*_CONV, "C3", FORCED, "The bias has one axis, and one element for each output channel.",
    "Optional 1D bias to be added to the convolution, has size of M.")  # fmt: skip
law(*_CONV, "G12", IMPLIED, "The zero points are not optional.", CONVOLVE,
    "Optional 1D bias to be added to the convolution",
    note="The schema makes the bias optional and no other input.")  # fmt: skip

# ConvInteger

_INTEGER = ("ConvInteger", (10,))
_SUMS = (
    "The word has one meaning in ONNX, though no page has its formula; a zero point is what DequantizeLinear subtracts."
)
law(*_INTEGER, "G7", IMPLIED, "Products and sums are exact.", SUM, SUM_LIMIT, MEANS, note=_SUMS)
law(*_INTEGER, "G7/wrap", DECISION, "A sum beyond int32 wraps.", SUM_LIMIT, note=WRAPS)
law(*_INTEGER, "C7", IMPLIED, "w_zero_point may have a value for each output channel.", SUM, W_FORM, W_LENGTH, MEANS, note=_SUMS)  # fmt: skip
law(*_INTEGER, "G12", IMPLIED, "Zero points that are left out are 0.", SUM, SUM_LIMIT,
    "Zero point tensor for input 'x'. It's optional and default value is 0.",
    "Zero point tensor for input 'w'. It's optional and default value is 0.", note=_SUMS)  # fmt: skip
law(*_INTEGER, "G9/one", DECISION, "A zero point of the whole tensor has shape [1] instead of being a scalar.",
    "It's a scalar, which means a per-tensor/layer quantization.", W_LENGTH, note=ONE)  # fmt: skip
law(*_INTEGER, "G11/sum", DECISION, "Without channels the sum is 0.", SUM, note=NOTHING)

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
law(*_MATMUL, "G3", FORCED, "The real product, in units of the output's scale, is rounded once; then the zero point is added.",
    NUMPY, _INPUTS, _FORMULA, _EVEN, MEANS)  # fmt: skip
law(*_MATMUL, "C1", FORCED, "a, b and y have a type each.", NUMPY, _INPUTS, _FORMULA, _EVEN, MEANS)
law(*_MATMUL, "G1", FORCED, "Round first, then add the zero point.", _FORMULA, _EVEN)
law(*_MATMUL, "G2", FORCED, "Ties go to the even integer.", _FORMULA, _EVEN)
law(*_MATMUL, "M1", FORCED, "Parameters of a are per row, of b per column.", _EQUAL, _FORMS, _VECTORS, _WHOLE, _FORMULA,
    _EVEN, MEANS, note="K stands for the columns of the input that the sentence speaks of: of b, N.")  # fmt: skip
law(*_MATMUL, "M1/matrix", IMPLIED, "Parameters of a matrix have shape [M, 1] or [1, N].", _EQUAL, _FORMS, _VECTORS, _WHOLE, _FORMULA,
    _EVEN, MEANS, note="The sentence about N-D tensors, for a tensor of two axes.")  # fmt: skip
law(*_MATMUL, "M1/mixed", DECISION, "A scale and its zero point have different shapes, which the text forbids.", _EQUAL,
    note="The form is excluded: to refuse it is right. qrun takes each for itself.")  # fmt: skip
law(*_MATMUL, "M1/other", DECISION, "A parameter has a shape that the text does not list.", _FORMS, _VECTORS, _WHOLE,
    note="The form is excluded: to refuse it is right. qrun takes shapes that broadcast along rows or columns.")  # fmt: skip
law(*_MATMUL, "M1/length", FORCED, "A vector of a has as many elements as a has rows.", _VECTORS)
law(*_MATMUL, "M1/product", IMPLIED, "The columns of a are as many as the rows of b.", NUMPY,
    note="numpy.matmul raises ValueError where they are not.")  # fmt: skip
law(*_MATMUL, "G3/half", DECISION, "With scales of float16 or bfloat16 the real product is rounded once.", _INPUTS, _FORMULA, _EVEN, MEANS,
    note="No sentence says in which type scales multiply and divide. qrun computes with real numbers; in the scales' own type other codes are as sound.")  # fmt: skip
law(*_MATMUL, "M2", DECISION, "Operands of float8 are real numbers.", _INPUTS, _FORMULA,
    note="No sentence says how float8 is multiplied, added or rounded. qrun's products are exact.")  # fmt: skip
law(*_MATMUL, "G9/one", DECISION, "A parameter of the whole tensor has shape [1] instead of being a scalar.", _FORMS, _VECTORS,
    note=ONE)  # fmt: skip
law(*_MATMUL, "G4", FORCED, "A result beyond the type gives the least or the greatest code.", _FORMULA, _INPUTS, MEANS)
law(*_MATMUL, "G7", FORCED, "Products and sums are exact.", NUMPY, _LIMIT, _INPUTS, _FORMULA, _EVEN, MEANS)
law(*_MATMUL, "G7/wrap", DECISION, "A sum beyond int32 wraps.", _LIMIT, note=WRAPS)
law(*_MATMUL, "G11/sum", IMPLIED, "Without an inner dimension the product is 0, and its code the zero point.", NUMPY, _FORMULA,
    note="numpy.matmul gives 0 where there is nothing to add.")  # fmt: skip
law(*_MATMUL, "G11/empty", FORCED, "A result without elements has the shape of numpy.matmul's.", NUMPY)
law("QLinearMatMul", (10,), "G10", FORCED, "A zero point has the type of its tensor.",
    "Constrain input a and its zero point data type to 8-bit integer tensor.",
    "Constrain input b and its zero point data type to 8-bit integer tensor.")  # fmt: skip
law("QLinearMatMul", (21,), "G10", FORCED, "A zero point has the type of its tensor.", "The type of input a and its zeropoint.",
    "The type of input b and its zeropoint.")  # fmt: skip
for _op, _versions, _about in (("QLinearConv", (10,), CONVOLVE), ("QLinearMatMul", (10, 21), _FORMULA)):
    law(_op, _versions, "G5", DECISION, "NaN gives the least code.", _about, note=NAN)
    law(_op, _versions, "G6", DECISION, "Zero, negative and infinite scales follow IEEE 754.", _about, note=SCALES)
    law(_op, _versions, "G6/subnormal", DECISION, "Subnormal scales count.", _about, note=TINY)

# MatMulInteger

_WHOLES = ("MatMulInteger", (10,))
_A = "If the input is 2D of shape [M, K] then zero point tensor may be an M element vector [zp_1, zp_2, ..., zp_M]. If the input is N-D tensor with shape [D1, D2, M, K] then zero point tensor may have shape [D1, D2, M, 1]."
_B = "If the input is 2D of shape [K, N] then zero point tensor may be an N element vector [zp_1, zp_2, ..., zp_N]. If the input is N-D tensor with shape [D1, D2, K, N] then zero point tensor may have shape [D1, D2, 1, N]."
law(*_WHOLES, "G7", FORCED, "Products and sums are exact.", NUMPY, SUM_LIMIT, MEANS)
law(*_WHOLES, "G7/wrap", DECISION, "A sum beyond int32 wraps.", SUM_LIMIT, note=WRAPS)
law(*_WHOLES, "G12", FORCED, "Zero points that are left out are 0.", NUMPY, SUM_LIMIT,
    "Zero point tensor for input 'A'. It's optional and default value is 0.",
    "Zero point tensor for input 'B'. It's optional and default value is 0.", MEANS)  # fmt: skip
law(*_WHOLES, "M1", FORCED, "Zero points of A are per row, of B per column.", NUMPY, SUM_LIMIT, _A, _B, MEANS)
law(*_WHOLES, "M1/matrix", IMPLIED, "Zero points of a matrix have shape [M, 1] or [1, N].", NUMPY, SUM_LIMIT, _A, _B, MEANS,
    note="The sentence about N-D tensors, for a tensor of two axes.")  # fmt: skip
law(*_WHOLES, "M1/other", DECISION, "A zero point has a shape that the text does not list.", _A, _B,
    note="The form is excluded: to refuse it is right. qrun takes shapes that broadcast along rows or columns.")  # fmt: skip
law(*_WHOLES, "M1/length", FORCED, "A vector of A has as many elements as A has rows.", _A)
law(*_WHOLES, "M1/product", IMPLIED, "The columns of A are as many as the rows of B.", NUMPY,
    note="numpy.matmul raises ValueError where they are not.")  # fmt: skip
law(*_WHOLES, "G9/one", DECISION, "A zero point of the whole tensor has shape [1] instead of being a scalar.",
    "Scalar refers to per tensor quantization whereas N-D refers to per row quantization.", _A, note=ONE)  # fmt: skip
law(*_WHOLES, "G11/sum", IMPLIED, "Without an inner dimension the product is 0.", NUMPY,
    note="numpy.matmul gives 0 where there is nothing to add.")  # fmt: skip
law(*_WHOLES, "G11/empty", FORCED, "A result without elements has the shape of numpy.matmul's.", NUMPY)
