"""The law of com.microsoft: what the schemas of onnxruntime say of each operator, word by word.

Schemas without a description (QLinearConv, NhwcMaxPool, DynamicQuantizeMatMul, DynamicQuantizeLSTM) make nothing law:
their cases are decisions. A scale and a zero point that a schema describes as those of a tensor do make law: a code is
the number (code - zero point) * scale, and a result becomes the code of the nearest number; which of two equally near
codes is a question of its own (G1).
"""

from __future__ import annotations

from _conformance_law import law

from qrun.conform.suite import DECISION, FORCED, IMPLIED, Quote

MS = "com.microsoft"
QUANTIZE = Quote(f"{MS}.QuantizeLinear-1", "The quantization formula is y = saturate ((x / y_scale) + y_zero_point).")
TO_EVEN = Quote(f"{MS}.QuantizeLinear-1", "For (x / y_scale), it's rounding to nearest ties to even.")
SATURATE = Quote(
    f"{MS}.QuantizeLinear-1", "For saturation, it saturates to [0, 255] if it's uint8, [-128, 127] if it's int8,"
)
DEQUANTIZE = Quote(f"{MS}.DequantizeLinear-1", "The dequantization formula is y = (x - x_zero_point) * x_scale.")
LEFT_OUT = "Default value is 0 if it's not specified."
NEAREST = (
    "For a value outside the range, the nearest code is the smallest or largest one, however far away the value is."
)
TIES = "The schema does not mention rounding. qrun rounds the quotient (ties to even) and then adds the zero point, as QuantizeLinear in the same domain does. Adding the zero point first is another valid reading."  # fmt: skip
NOTHING = "The schema does not cover a length of 0. An empty sum is 0, so only the bias remains, if there is one."

# QuantizeLinear, DequantizeLinear

_CODES = "y = saturate(round(x / y_scale) + y_zero_point), ties to even."
law(f"{MS}.QuantizeLinear", (1,), "Q1", FORCED, _CODES, QUANTIZE, TO_EVEN, SATURATE)
law(f"{MS}.QuantizeLinear", (1,), "G1", FORCED, "Round first (ties to even), then add the zero point.",
    QUANTIZE, TO_EVEN)  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "G12", FORCED, "Without a zero point, y is uint8 and its zero point is 0.",
    QUANTIZE, TO_EVEN, "Default is uint8 with zero point of 0 if it's not specified.")  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "Q4", FORCED, "There is one scale and one zero point per index along axis.", QUANTIZE, TO_EVEN,
    "If it's specified, it means per 'axis' quantization and input 'x_scale' and 'x_zero_point' must be 1-D tensors.")  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "Q1/16", FORCED, _CODES, QUANTIZE, TO_EVEN,
    "[0, 65,535] if it's uint16, and [-32,768, 32,767] if it's int16.")  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "Q8", IMPLIED, "int4 and uint4 round and saturate as wider types do.",
    QUANTIZE, TO_EVEN,
    note="The schema allows int4 and uint4 but lists no range for them; their full ranges are -8..7 and 0..15.")  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "Q1/open", DECISION, "The quotient is rounded to the type of x, then to an integer.",
    QUANTIZE, TO_EVEN, note="The schema does not say in which type to divide. Dividing in float16, in float32 or exactly produces different codes in this case.")  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "G4/infinite", IMPLIED, "Infinity becomes the smallest or largest code.", QUANTIZE, SATURATE,
    note="Infinity is outside every range.")  # fmt: skip
law(f"{MS}.QuantizeLinear", (1,), "Q9", DECISION, "A 1-D scale without axis applies to axis 1.",
    "If it's not specified, it means per-tensor quantization and input 'x_scale' and 'x_zero_point' must be scalars.",
    note="The schema excludes this form; in ai.onnx, axis defaults to 1.")  # fmt: skip
_NUMBERS = "y = (x - x_zero_point) * x_scale, rounded once."
law(f"{MS}.DequantizeLinear", (1,), "D1", FORCED, _NUMBERS, DEQUANTIZE)
law(f"{MS}.DequantizeLinear", (1,), "G12", FORCED, "An omitted zero point is 0.", DEQUANTIZE,
    "Zero point is 0 when it's not specified.")  # fmt: skip
law(f"{MS}.DequantizeLinear", (1,), "Q4", FORCED, "There is one scale and one zero point per index along axis.", DEQUANTIZE,
    "If it's specified, it means per 'axis' quantization and input 'x_scale' and 'x_zero_point' must be 1-D tensors.")  # fmt: skip
law(f"{MS}.DequantizeLinear", (1,), "D1/half", DECISION, "For float16, the difference and product are computed in float32, then rounded to float16.",
    DEQUANTIZE, note="Differences of 16-bit codes are not always exact in float16, and the schema does not say where to round.")  # fmt: skip
law(f"{MS}.DequantizeLinear", (1,), "D1/int32", DECISION, "For int32, the exact difference is rounded to float32, then multiplied.",
    DEQUANTIZE, note="Differences of int32 values are not always exact in float32 and may not fit int32.")  # fmt: skip

# Elementwise

_ADD = "C = (A_scale * (A - A_zero_point) + B_scale * (B - B_zero_point))/C_scale + C_zero_point"
_MUL = "C = ((A - A_zero_point) * (B - B_zero_point)) * (A_scale * B_scale)/C_scale + C_zero_point"
for _name, _formula, _section, _what in (("QLinearAdd", _ADD, "E1", "sum"), ("QLinearMul", _MUL, "E2", "product")):
    law(
        f"{MS}.{_name}",
        (1,),
        _section,
        IMPLIED,
        f"The result is the code nearest to the {_what} of the two dequantized numbers.",
        _formula,
    )
    law(f"{MS}.{_name}", (1,), "G1", DECISION, "Round first (ties to even), then add the zero point.",
        _formula, TO_EVEN, note=TIES)  # fmt: skip
    law(
        f"{MS}.{_name}",
        (1,),
        "G3",
        IMPLIED,
        f"The {_what} is exact, whatever the ratio of the scales.",
        _formula,
    )
    law(f"{MS}.{_name}", (1,), "G4", IMPLIED, "A value outside the range of codes becomes the smallest or largest code.", _formula,
        note=NEAREST)  # fmt: skip
    law(f"{MS}.{_name}", (1,), "G11", IMPLIED, "Empty inputs produce an empty output.", _formula,
        "(with Numpy-style broadcasting support)")  # fmt: skip
    law(f"{MS}.{_name}", (1,), "G12", IMPLIED, "An omitted zero point is 0.", _formula,
        f"Output zero point. {LEFT_OUT}")  # fmt: skip

_LEAKY = "`f(x) = quantize(dequantize(x)) for dequantize(x) >= 0`"
_LEAK = "`f(x) = quantize(alpha * dequantize(x)) for dequantize(x) < 0`"
law(f"{MS}.QLinearLeakyRelu", (1,), "E5", IMPLIED, "The number, multiplied by alpha if negative, is quantized.",
    _LEAK, _LEAKY, QUANTIZE)  # fmt: skip
law(f"{MS}.QLinearLeakyRelu", (1,), "G1", IMPLIED, "quantize rounds (ties to even), then adds the zero point.",
    _LEAKY, QUANTIZE, TO_EVEN)  # fmt: skip
law(f"{MS}.QLinearLeakyRelu", (1,), "G12", IMPLIED, "An omitted zero point is 0.", _LEAK, _LEAKY,
    f"Output Y's zero point. {LEFT_OUT}")  # fmt: skip
_SIGMOID = "(Tensor<T>) where the function `f(x) = quantize(Sigmoid(dequantize(x)))`, is applied to the data tensor elementwise."
law(f"{MS}.QLinearSigmoid", (1,), "E6", IMPLIED, "The exact value of the logistic function is quantized.", _SIGMOID,
    "`Sigmoid(x) = 1 / (1 + exp(-x))`", QUANTIZE)  # fmt: skip
law(f"{MS}.QLinearSigmoid", (1,), "G1", IMPLIED, "quantize rounds (ties to even), then adds the zero point.",
    _SIGMOID, QUANTIZE, TO_EVEN)  # fmt: skip
law(f"{MS}.QLinearSigmoid", (1,), "G12", IMPLIED, "An omitted zero point is 0.", _SIGMOID,
    f"Output Y's zero point. {LEFT_OUT}")  # fmt: skip

_SOFTMAX = "Softmax(input, axis) = Exp(input) / ReduceSum(Exp(input), axis=axis, keepdims=1)"
law(f"{MS}.QLinearSoftmax", (1,), "S2", IMPLIED, "The exact softmax is quantized with y_scale.", _SOFTMAX,
    "Scale of quantized output 'Y'.", "Zero point tensor for output 'Y'.")  # fmt: skip
law(f"{MS}.QLinearSoftmax", (1,), "S2/coerced", IMPLIED, "Before opset 13, a row spans all axes starting at axis.", _SOFTMAX,
    "or the dimension coerced to NxD Matrix for onnx v.12-.")  # fmt: skip
law(f"{MS}.QLinearSoftmax", (1,), "G1", DECISION, "Round first (ties to even), then add the zero point.",
    _SOFTMAX, TO_EVEN, note=TIES)  # fmt: skip
law(f"{MS}.QLinearSoftmax", (1,), "G11", IMPLIED, "Empty inputs produce an empty output.",
    "The output tensor has the same shape.")  # fmt: skip

for _name, _section, _text, _what in (
    ("QLinearConcat", "E3", "Concatenate a list of tensors into a single tensor.", "Each part"),
    ("QLinearWhere", "E4", "Return elements, either from X or Y, depending on condition.", "The chosen element"),
):
    _scales = ("Y's scale.", "Y's zero point.") if _name == "QLinearConcat" else ("Z's scale.", "Z's zero point.")
    law(
        f"{MS}.{_name}",
        (1,),
        _section,
        IMPLIED,
        f"{_what} is requantized to the nearest code.",
        _text,
        *_scales,
    )
    law(f"{MS}.{_name}", (1,), "G1", DECISION, "Round first (ties to even), then add the zero point.",
        _text, *_scales, TO_EVEN, note=TIES)  # fmt: skip
law(f"{MS}.QLinearWhere", (1,), "E4/broadcast", IMPLIED, "condition, X and Y are broadcast to one shape.",
    "Return elements, either from X or Y, depending on condition.",
    "Tensor of shape equal to the broadcasted shape of condition, X, and Y")  # fmt: skip

# Pools

_AVERAGE = "Output = Dequantize(Input) -> AveragePool on fp32 data -> Quantize(output)"
_DIVIDED = "The output of each pooling window is divided by the number of elements (exclude pad when attribute count_include_pad is zero)."  # fmt: skip
_CEIL = "output_spatial_shape[i] = ceil((input_spatial_shape[i] + pad_shape[i] - kernel_spatial_shape[i]) / strides_spatial_shape[i] + 1)"  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "P1", IMPLIED, "The sum of a window is divided by its number of elements; count_include_pad includes the padding.",
    _AVERAGE, _DIVIDED)  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "P1/ceil", IMPLIED, "ceil_mode adds a window; its sum is divided by its number of elements.",
    _CEIL, _AVERAGE, _DIVIDED)  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "P1/beyond", DECISION, "Elements that ceil_mode adds beyond the padding are never counted, and a window that starts there is dropped.",
    _CEIL, _DIVIDED, Quote("AveragePool-22", "Sliding windows that would start in the right padded region are ignored."),
    note="The schema's formula includes such windows but does not say what to divide by. AveragePool excludes them since version 19.")  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "C4", IMPLIED, "SAME adds just enough padding.", _AVERAGE, _DIVIDED,
    "pad_shape[i] = (output_spatial_shape[i] - 1) * strides_spatial_shape[i] + kernel_spatial_shape[i] - input_spatial_shape[i]",
    "In case of odd number add the extra padding at the end for SAME_UPPER and at the beginning for SAME_LOWER.")  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "C5", DECISION, "A window larger than the padded input is an error.",
    "output_spatial_shape[i] = floor((input_spatial_shape[i] + pad_shape[i] - kernel_spatial_shape[i]) / strides_spatial_shape[i] + 1)",
    note="The formula yields a size of 0 or less, and the text does not say what that means.")  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "G1", DECISION, "Quantize rounds (ties to even), then adds the zero point.",
    _AVERAGE, QUANTIZE, TO_EVEN,
    note="The schema composes the operator of three others and does not say which Quantize it means. qrun uses QuantizeLinear in the same domain; onnxruntime adds the zero point before it rounds.")  # fmt: skip
law(f"{MS}.QLinearAveragePool", (1,), "G4", IMPLIED, "A value outside the range of codes becomes the smallest or largest code.",
    _AVERAGE, QUANTIZE, SATURATE)  # fmt: skip
law(
    f"{MS}.QLinearAveragePool",
    (1,),
    "G12",
    IMPLIED,
    "An omitted zero point is 0.",
    _AVERAGE,
    f"Output zero point. {LEFT_OUT}",
)
_GLOBAL = "QLinearGlobalAveragePool consumes an input tensor X and applies Average pooling across"
law(f"{MS}.QLinearGlobalAveragePool", (1,), "P2", IMPLIED, "The mean of each channel is quantized to the nearest code.", _GLOBAL,
    "the values in the same channel. This is equivalent to AveragePool with kernel size", "Scale of quantized output 'Y'.")  # fmt: skip
law(f"{MS}.QLinearGlobalAveragePool", (1,), "P2/last", IMPLIED, "With channels_last, the channels are the last axis.", _GLOBAL,
    "According to channels_last, dimensions for image case are (N x C x H x W), or (N x H x W x C)")  # fmt: skip
law(f"{MS}.QLinearGlobalAveragePool", (1,), "G1", DECISION, "Round first (ties to even), then add the zero point.",
    _GLOBAL, TO_EVEN, note=TIES)  # fmt: skip
law(f"{MS}.NhwcMaxPool", (1,), "P3", DECISION, "This is MaxPool on codes with channels last; padding is never the maximum.",
    Quote("MaxPool-22", "MaxPool consumes an input tensor X and applies max pooling across"),
    note="The schema of NhwcMaxPool has no description. Going by its name and attributes, qrun treats it as MaxPool.")  # fmt: skip

# Convolution and products of matrices

law(f"{MS}.QLinearConv", (1,), "C6", DECISION, "This is QLinearConv of ai.onnx; channels_last affects only x and y.",
    Quote("QLinearConv-10", "and computes the quantized output."),
    note="The com.microsoft schema has no description. qrun assumes that the operator works as in ai.onnx and that w stays [M,C/group,kernel...].")  # fmt: skip
law(f"{MS}.QLinearConv", (1,), "C2", DECISION, "w_scale and w_zero_point may each be a scalar or hold one value per output channel.",
    Quote("QLinearConv-10", "Each scale and zero-point pair must have same shape"),
    note="QLinearConv of ai.onnx does not allow one to be a scalar and the other a vector.")  # fmt: skip
_C = "Its type is int32_t and must be quantized with zero_point = 0 and scale = alpha / beta * a_scale * b_scale."
_FULL = "The output is full precision(float32) if it is not provided. Or the output is quantized."
_GEMM = (
    "Scalar multiplier for the product of input tensors A * B.",
    "Scale of quantized input 'A'.",
    "Scale of output 'Y'.",
)
law(
    f"{MS}.QGemm",
    (1,),
    "M3",
    IMPLIED,
    "C is in units of alpha * a_scale * b_scale; the result is the nearest code.",
    _C,
    *_GEMM,
)
law(f"{MS}.QGemm", (1,), "M4", IMPLIED, "Without y_scale and y_zero_point, the result is float32.", _FULL, _C, *_GEMM[:2],
    note="The order of the float32 operations is unspecified, so any result within the case's bound is accepted.")  # fmt: skip
law(f"{MS}.QGemm", (1,), "M4/scale", DECISION, "Without y_zero_point, the result is float32 and y_scale is ignored.", _FULL,
    note="The sentence says quantized because y_scale is given, and float32 because y_zero_point is not.")  # fmt: skip
law(
    f"{MS}.QGemm",
    (1,),
    "G1",
    DECISION,
    "Round first (ties to even), then add the zero point.",
    _FULL,
    TO_EVEN,
    note=TIES,
)
law(f"{MS}.QGemm", (1,), "G11", DECISION, "With K = 0, the sum is C, or 0 without C.", _C,
    "If not specified, the computation is done as if C is a scalar 0.", *_GEMM, note=NOTHING)  # fmt: skip
law(
    f"{MS}.QGemm",
    (1,),
    "G4",
    IMPLIED,
    "A value outside the range of codes becomes the smallest or largest code.",
    _C,
    *_GEMM,
    note=NEAREST,
)
_PRODUCT = ("Matrix multiply results from A * B", "1D input tensor, whose dimension is same as B's last dimension")
_FACTORS = ("Scale of quantized input 'A'.", "Scale of quantized input 'B'.", *_PRODUCT)
law(f"{MS}.MatMulIntegerToFloat", (1,), "M5", IMPLIED, "The result is the product of the dequantized matrices, plus the bias.", *_FACTORS,
    note="The precision and order of the float operations are unspecified, so any result within the case's bound is accepted.")  # fmt: skip
law(f"{MS}.MatMulIntegerToFloat", (1,), "G7", IMPLIED, "The products of codes and their sums are exact.", *_FACTORS)
law(
    f"{MS}.MatMulIntegerToFloat",
    (1,),
    "G11",
    DECISION,
    "With K = 0, the sum is the bias, or 0 without a bias.",
    *_FACTORS,
    note=NOTHING,
)
law(f"{MS}.MatMulIntegerToFloat", (1,), "G12", IMPLIED, "An omitted zero point is 0.",
    "Zero point tensor for input 'A'. It's optional and default value is 0.", *_FACTORS)  # fmt: skip
_DYNAMIC = "The schema has no description. Only the name suggests that A is quantized as DynamicQuantizeLinear does."
for _section, _title in (("M5", "A is quantized per tensor; the exact product, plus the bias, is rounded once."),
                         ("G11", "With K = 0, the sum is the bias, or 0 without a bias.")):  # fmt: skip
    law(f"{MS}.DynamicQuantizeMatMul", (1,), _section, DECISION, _title, *_PRODUCT,
        Quote("DynamicQuantizeLinear-11", "A Function to fuse calculation for Scale, Zero Point and FP32->8Bit conversion of FP32 Input data."),
        note=_DYNAMIC)  # fmt: skip
_NUMPY = "Matrix product that behaves like numpy.matmul: https://docs.scipy.org/doc/numpy-1.13.0/reference/generated/numpy.matmul.html."
_WRAP = "The production MUST never overflow. The accumulation may overflow if and only if in 32 bits."
law(f"{MS}.MatMulInteger16", (1,), "G7", FORCED, "Products and sums are exact.", _NUMPY, _WRAP)
law(f"{MS}.MatMulInteger16", (1,), "G7/wraps", DECISION, "A sum that exceeds 32 bits wraps around.", _NUMPY, _WRAP,
    note="The sentence allows overflow in 32 bits but does not say what results. qrun keeps the low 32 bits of the sum.")  # fmt: skip
law(f"{MS}.MatMulInteger16", (1,), "G7/unsigned", FORCED, "Two uint16 inputs produce a uint32 result.", _NUMPY, _WRAP,
    "T3 must be tensor(uint32) when both T1 and T2 are tensor(uint16)")  # fmt: skip

# Weights of a few bits

_WEIGHT = "dequantized_weight = (quantized_weight - zero_point) * scale"
_FUSION = "2. Matrix multiplication between the input matrix A and the dequantized weight matrix."
_PACKED = "For example, for 4 bits, the first 4 bits are stored in the lower 4 bits of a byte, and the second 4 bits are stored in the higher 4 bits of a byte."  # fmt: skip
_ORDER = "The order of the float sums is unspecified, so any result within the case's bound is accepted."
law(
    f"{MS}.MatMulNBits",
    (1,),
    "M7",
    IMPLIED,
    "A is multiplied by the dequantized weights.",
    _WEIGHT,
    _FUSION,
    _PACKED,
    note=_ORDER,
)
law(f"{MS}.MatMulNBits", (1,), "M7/default", IMPLIED, "An omitted zero point is 2^(bits - 1).", _WEIGHT, _FUSION,
    "If not provided, a default zero point is used: 2^(bits - 1) (e.g., 8 for 4-bit quantization, 128 for 8-bit).", note=_ORDER)  # fmt: skip
law(f"{MS}.MatMulNBits", (1,), "M7/float", IMPLIED, "Zero points may be floats, one per block.", _WEIGHT, _FUSION,
    "Unpacked (same type as A) format has shape (N, k_blocks).", note=_ORDER)  # fmt: skip
law(f"{MS}.MatMulNBits", (1,), "M8", DECISION, "accuracy_level does not change the result.",
    "4 means input A can be quantized with the same block_size to int8 internally from type T1.",
    note="The sentence allows a runtime to quantize A but does not require it.")  # fmt: skip
law(f"{MS}.MatMulNBits", (1,), "M9", DECISION, "g_idx selects the block for each k.", "group_idx. This input is deprecated",
    note="The schema does not say what this input means.")  # fmt: skip
law(f"{MS}.MatMulNBits", (1,), "G11", FORCED, "If the projection is omitted, Y is 0, or the bias.",
    "In this case, Y is filled with zeros (or the broadcast bias, if provided).")  # fmt: skip
_GATHER = "During the op execution, `data` and `indices` are first used to generate the quantized output. Then, `scales` and `zero_points` are used"
law(f"{MS}.GatherBlockQuantized", (1,), "M12", IMPLIED, "Each gathered code, minus its block's zero point, is multiplied by its block's scale.", _GATHER,
    "It is quantized block-wise along attribute `quantize_axis` with block size specified by attribute `block_size`.")  # fmt: skip
law(f"{MS}.GatherBlockQuantized", (1,), "M12/default", IMPLIED, "An omitted zero point is 0 for int4 and uint4, and 2^(bits-1) for uint8.", _GATHER,
    "If `zero_points` is not provided, the default value is 0 for int4/uint4, or 2^(bits-1) for uint8.")  # fmt: skip
law(f"{MS}.GatherBlockQuantized", (1,), "M12/range", FORCED, "An out-of-range index produces zeros.", _GATHER,
    "Unlike ONNX Gather, an out-of-range index produces zeros for the corresponding output slice.")  # fmt: skip
law(f"{MS}.GatherBlockQuantized", (1,), "M12/floats", FORCED, "For float8 and float4, each number is multiplied by its block's scale.",
    "dequantization is simply `output[...] = float(data[...]) * scales[block_index(...)]`.")  # fmt: skip
_CHOSEN = "the values at the selected expert indices are gathered and used as mixing weights"
law(f"{MS}.QMoE", (1,), "M13", IMPLIED, "The k experts with the largest router_probs are mixed by router_weights.", _CHOSEN, _WEIGHT,
    "Number of top experts to select from expert pool", note=_ORDER)  # fmt: skip
law(f"{MS}.QMoE", (1,), "M13/shares", DECISION, "Without router_weights, the mixing weights are Softmax of the selected router_probs.",
    "When not provided, router_probs is used for both selection and aggregation (backward compatible).",
    note="The schema does not say how router_probs become mixing weights. onnxruntime applies Softmax to the selected ones.")  # fmt: skip
law(f"{MS}.QMoE", (1,), "M8", DECISION, "accuracy_level does not change the result.",
    "Block-wise 8-bit experts have no fp32 kernel and use int8 activations at every level.",
    note="The schema allows a runtime to quantize the activations of block-wise experts; qrun does not.")  # fmt: skip

for _section, _title, _text in (
    ("M13/gelu", "gelu is the tanh approximation.", "Choose from relu, gelu, silu, swiglu and identity."),
    (
        "M13/normalized",
        "normalize_routing_weights divides the mixing weights by their sum.",
        "Whether to normalize routing weights",
    ),
):
    law(
        f"{MS}.QMoE", (1,), _section, DECISION, _title, _text, _CHOSEN, note="The schema names it but gives no formula."
    )

# Networks

law(f"{MS}.DynamicQuantizeLSTM", (1,), "Y4", DECISION, "X is quantized once per tensor, H before each step.",
    "W's scale. Its size is [num_directions] for per-tensor/layer quantization, or [num_directions, 4*hidden_size] for per-channel quantization on the axis input_size.",
    Quote("LSTM-22", "Computes an one-layer LSTM."),
    note="The schema has no description and does not say what is quantized when.")  # fmt: skip
law(f"{MS}.QAttention", (1,), "M10", DECISION, "Only the projection to Q, K and V is computed in integers.",
    "Quantization of Multi-Head Self Attention.", "2D input tensor with shape (input_hidden_size, 3 * hidden_size), hidden_size = num_heads * head_size",
    note="The schema does not say what is quantized, or in which order the weight holds Q, K and V.")  # fmt: skip
