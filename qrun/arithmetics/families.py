"""The requantization arithmetics of public engines, as five choices each.

Sources are files of the engines; where a row was compared with the engine itself, tests/arithmetics says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from qrun.arithmetics.family import Arithmetic

_MLAS = "onnxruntime core/mlas/lib/quantize.cpp"
_TFLITE = "TFLite kernels/internal/common.cc, MultiplyByQuantizedMultiplier"
_XNNPACK = "XNNPACK src/qs8-requantization, src/configs/gemm-config.c"
_TRACT = "tract linalg, rounding shifts"

_ROWS: tuple[Arithmetic, ...] = (
    Arithmetic("exact", "double", "float64", "one", "even", "after", "qrun", "docs/internals/numerics.md, G3"),
    Arithmetic("fp32", "single", "float32", "one", "even", "after", "onnxruntime, XNNPACK", _MLAS),
    Arithmetic("fp32-away", "single", "float32", "one", "away", "after", "MNN", "MNN source/backend/cpu/compute/Int8FunctionsOpt.cpp; the order of its products is not confirmed"),
    Arithmetic("fp32-zp-last", "single", "float32", "one", "even", "before", "OpenVINO, oneDNN", "oneDNN documentation, Quantization"),
    Arithmetic("fp32-two", "single", "float32", "two products", "even", "after", "onnxruntime's unfused QDQ", _MLAS),
    Arithmetic("fp32-two-reciprocal", "single", "float32", "two products, reciprocal", "even", "after", "tract's unfused QDQ", _TRACT),
    Arithmetic("onnx-ref", "single", "float64", "one", "even", "before", "onnx.reference", "onnx/reference/ops/op_qlinear_conv.py"),
    Arithmetic("f64-away", "double", "float64", "one", "away", "after", "LiteRT's reference FULLY_CONNECTED", "TFLite reference/integer_ops/fully_connected.h"),
    Arithmetic("ncnn", "reciprocals", "float32", "two products, reciprocal", "away", "after", "ncnn", "ncnn src/layer/requantize.cpp", -127),
    Arithmetic("tfl-double", "double", "31 bits", "high half", "away", "after", "TFLite reference, CMSIS-NN, esp-nn, gemmlowp, TOSA double_round, Ethos-U", _TFLITE),
    Arithmetic("tfl-double-fc", "mixed", "31 bits", "high half", "away", "after", "TFLite reference FULLY_CONNECTED per tensor", _TFLITE),
    Arithmetic("tfl-halfup2", "double", "31 bits", "high half", "up", "after", "LiteRT's optimized kernels, ARM vqrdmulh and vrshl", _TFLITE),
    Arithmetic("tfl-halfup2-fc", "mixed", "31 bits", "high half", "up", "after", "LiteRT's optimized FULLY_CONNECTED", _TFLITE),
    Arithmetic("tfl-single", "double", "31 bits", "one", "up", "after", "TFLITE_SINGLE_ROUNDING, CMSIS_NN_USE_SINGLE_ROUNDING, ruy, TOSA single_round, TVM", _TFLITE),
    Arithmetic("tfl-single-fc", "mixed", "31 bits", "one", "up", "after", "single-rounding FULLY_CONNECTED per tensor", _TFLITE),
    Arithmetic("q31-away", "double", "31 bits", "one", "away", "after", "TVM relay (TONEAREST)", "tvm src/relay/qnn/utils.cc; removed from TVM"),
    Arithmetic("rndnu", "single", "24 bits", "one", "up", "after", "XNNPACK on ARM", _XNNPACK),
    Arithmetic("rndnu16", "single", "24 bits", "16 bits", "up", "after", "XNNPACK on some ARM cores", _XNNPACK),
    Arithmetic("tract", "single", "24 bits", "one", "even", "after", "tract per tensor", _TRACT),
    Arithmetic("q24-even-reciprocal", "reciprocal", "24 bits", "one", "even", "after", "tract per channel", _TRACT),
    Arithmetic("q15-up", "double", "15 bits", "one", "up", "after", "TOSA RESCALE with scale16", "TOSA specification, RESCALE"),
    Arithmetic("q15-away", "double", "15 bits", "one", "away", "after", "NVDLA", "nvdla/hw cmod, IntShiftRightSat"),
    Arithmetic("q8-up", "double", "8 bits", "one", "up", "after", "GAP9", "GreenWaves gap_sdk CNN_Defines.h"),
    Arithmetic("pot-up", "double", "power of two", "one", "up", "after", "AMD DPU activations, esp-dl on ESP32-S3", "Xilinx/Vitis-AI fix.cpp; espressif/esp-dl dl_tool.cpp"),
    Arithmetic("pot-even", "double", "power of two", "one", "even", "after", "esp-dl on ESP32-P4", "espressif/esp-dl dl_tool.cpp"),
    Arithmetic("pot-away", "double", "power of two", "one", "away", "after", "AMD DPU weights", "Xilinx/Vitis-AI nndct quant_config.py"),
    Arithmetic("pot-zero", "double", "power of two", "one", "zero", "after", "hls4ml AP_RND_ZERO", "Xilinx/HLS_arbitrary_Precision_Types"),
    Arithmetic("pot-down", "double", "power of two", "one", "down", "after", "hls4ml AP_RND_MIN_INF", "Xilinx/HLS_arbitrary_Precision_Types"),
    Arithmetic("pot-floor", "double", "power of two", "one", "floor", "after", "hls4ml AP_TRN", "Xilinx/HLS_arbitrary_Precision_Types"),
    Arithmetic("pot-cut", "double", "power of two", "one", "cut", "after", "hls4ml AP_TRN_ZERO", "Xilinx/HLS_arbitrary_Precision_Types"),
)  # fmt: skip
FAMILIES: Mapping[str, Arithmetic] = {row.name: row for row in _ROWS}
"""The arithmetics by name."""
