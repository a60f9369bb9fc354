"""A cause: a quantized bias that counts in other steps than its own."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause


@cause("bias-scale", rank=38, source="ONNX operators, DequantizeLinear-25, Gemm-13; onnxruntime, graph optimizations")
def bias_scale(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime fuses a product and its dequantized bias into one integer operator, which has no scale for the bias.
    It takes the int32 codes of the bias as multiples of x_scale * w_scale, and ignores their own scale and zero point.

    To confirm: qrun check reports QR304 for such a bias of Conv or Gemm. If its scale is x_scale * w_scale and its zero
    point 0, the difference disappears.

    To do: Requantize the bias: divide it by x_scale * w_scale, round to int32, and store that scale with zero point 0.
    """
    for made, text in s.form_results("bias-scale"):
        yield Hypothesis(made, text, tolerant=True)
