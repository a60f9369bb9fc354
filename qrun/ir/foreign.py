"""Domains of other tools' operators: which tool writes them, whether qrun runs some, and what to export instead."""

from __future__ import annotations

from qrun.declare.frozen import frozen
from qrun.ir.schema import MCT, QUARK, VAI, VENDORS

_QDQ = "QuantizeLinear and DequantizeLinear of ai.onnx"


@frozen
class ForeignDomain:
    """writer: the tool that writes operators of the domain. instead: how to get a model that qrun runs. with_ort:
    whether the onnxruntime that qrun calls has the operators itself."""

    writer: str
    instead: str
    with_ort: bool = False

    def why(self, domain: str) -> str:
        """The sentence that says whose domain this is."""
        runs = f"runs the operators that `qrun ops {domain}` lists" if domain in VENDORS else "does not run it"
        return f"domain {domain!r} belongs to {self.writer}, not to ONNX; qrun {runs}."


_DOMAINS = {
    QUARK: ForeignDomain("AMD Quark", f"quantize again with quant_format=QuantFormat.QDQ, which writes {_QDQ}"),
    VAI: ForeignDomain(
        "AMD's Vitis AI quantizer (vai_q_onnx)",
        f"quantize again with quant_format=QuantFormat.QDQ, which writes {_QDQ}",
    ),
    MCT: ForeignDomain(
        "Sony's Model Compression Toolkit",
        "export with quantization_format=QuantizationFormat.FAKELY_QUANT, which writes operators of ai.onnx",
    ),
    "aimet": ForeignDomain(
        "Qualcomm's AIMET", f"export with to_onnx_qdq() of the QuantizationSimModel, which writes {_QDQ}"
    ),
    "trt": ForeignDomain(
        "NVIDIA's TensorRT (Model Optimizer)",
        f"export {_QDQ}: opset 19 has them for float8, opset 21 for int4",
    ),
    "org.openvinotoolkit": ForeignDomain(
        "OpenVINO (NNCF)", f"call nncf.quantize with the ONNX model itself, which adds {_QDQ}"
    ),
    "com.microsoft.nchwc": ForeignDomain(
        "onnxruntime's optimizer, which writes it for one kind of CPU",
        "use the model before optimization, or save it with graph_optimization_level = ORT_ENABLE_EXTENDED",
        with_ort=True,
    ),
    "ai.onnx.contrib": ForeignDomain(
        "onnxruntime-extensions", "export the network without its tokenizer or image decoding, and feed their results"
    ),
}


def foreign_domain(domain: str) -> ForeignDomain | None:
    """The entry of a domain; the parts after its first dot, as in ``aimet.customop.cpu``, may be any."""
    return _DOMAINS.get(domain) or _DOMAINS.get(domain.split(".", 1)[0])
