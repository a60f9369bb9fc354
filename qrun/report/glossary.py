"""The words that qrun's screens use; ``qrun explain glossary`` and docs/glossary.md print them."""

from __future__ import annotations

GLOSSARY = {
    "arithmetic": "How an engine turns an int32 sum into a code: the multiplier, its width, the number of roundings, ties, the place of the zero point. A family is an arithmetic that some engines share. qrun explain arithmetics lists the families; qrun probe and qrun compare name that of a device.",
    "calibration": "The step of quantization that runs the float model on typical inputs to choose the range of each activation. Ranges from too few inputs clip: qrun compare FLOAT INT8 shows which.",
    "code": "The integer that stores a quantized value: real value = (code - zero point) * scale. uint8 has the codes 0 to 255.",
    "fused": "Run as one node: DequantizeLinear, an operator and QuantizeLinear become one integer operator that rounds once. Conv +4 is a Conv fused with four other nodes. --no-fuse runs the graph as written.",
    "golden": "Used as the reference for other results. qrun's results are golden because each element is the exact result, rounded once. qrun compare --record saves them.",
    "group": "DequantizeLinear nodes, one operator and QuantizeLinear, which a runtime may run as one integer operator; also called a QDQ group. QR601 says why a group stays in float.",
    "literal": "The graph as written: no groups are fused, and each node rounds its own result. qrun compare --against literal compares with it.",
    "local": "Measured for one node alone: the node reads the float model's values, and its result is compared with the float tensor. The cumulative error includes all earlier nodes.",
    "noise": "The quantized value minus the float value. A node's noise is the error that it adds to the outputs.",
    "overhead": "The time of a run that is spent outside its nodes: in the call from Python, and between nodes. It is the time of a plain run minus the median times of its nodes.",
    "qdq": "A model of float operators between DequantizeLinear and QuantizeLinear nodes. The runtime decides which groups run in integers.",
    "qoperator": "A model of integer operators, such as QLinearConv, with their scales and zero points as inputs.",
    "requantization": "The conversion of an int32 sum to an 8-bit code: multiply by x_scale * w_scale / y_scale, round, add the zero point, saturate. A runtime that also rounds in between may differ by one step.",
    "roof": "The shortest time in which this machine could run a node, given its multiply-adds and the bytes that it moves. At 50 % of the roof, a node takes twice that time. qrun explain roof says how it is measured.",
    "saturation": "Clipping: a value outside the range of its type becomes the smallest or largest code. QR402 reports it for quantized tensors, QR409 for the int16 sums of onnxruntime on CPUs without VNNI.",
    "scale": "The parameter that turns a code into a real number: real value = (code - zero point) * scale. A tensor has one scale, one for each output channel (per channel), or one for each block.",
    "share": "A part of a total, in percent. In profile, the total is the time of all nodes. In compare, it is the noise that all quantized nodes add to the outputs.",
    "sqnr": "Signal to quantization noise ratio, in dB: 10 log10(sum(want^2) / sum((got - want)^2)). Higher is better: 20 dB more means a tenth of the error, 6 dB more is worth one bit. exact means that there is no difference.",
    "step": "The distance between two neighbouring codes, which equals the scale. Values that differ by one step have neighbouring codes. In profile, nodes listed together ran as one step.",
    "tie": "A value exactly halfway between two codes, such as 10.5. The specification rounds ties to the even code; a runtime that rounds them up, or computes in float32, differs by one step.",
    "vnni": "x86 instructions that add products of bytes in 32 bits. Without them, onnxruntime adds pairs of products in 16 bits, and they saturate. qrun compare --emulate avx2 shows the effect.",
}
"""What each word means, in a few sentences, in the order of the alphabet."""
