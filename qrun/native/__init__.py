"""The native engine: int8 products compiled for this CPU. Arrays and numbers in, arrays out; it knows no ONNX."""

from qrun.native.cache import default_directory
from qrun.native.conv import Conv
from qrun.native.engine import Engine
from qrun.native.epilogue import Target
from qrun.native.errors import Declined
from qrun.native.gemm import Gemm
from qrun.native.isa import available
from qrun.native.operation import Operation

__all__ = ["Conv", "Declined", "Engine", "Gemm", "Operation", "Target", "available", "default_directory"]
