"""The native engine: kernels compiled for this CPU. Arrays and numbers in, arrays out.

May be imported by `ops` and everything above it, and is the only importer of llvmlite and ctypes. It knows no ONNX: no
node, no operator name, no model.
"""
