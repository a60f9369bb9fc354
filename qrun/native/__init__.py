"""The native engine: int8 products compiled for this CPU. Arrays and numbers in, arrays out; it knows no ONNX."""

from qrun.native.cache import default_directory
from qrun.native.conv import Conv
from qrun.native.engine import Engine
from qrun.native.epilogue import Target
from qrun.native.errors import Declined
from qrun.native.gemm import Gemm
from qrun.native.isa import available
from qrun.native.operation import Operand, Operation
from qrun.native.placement import Foreign, Task
from qrun.native.program import Program, Unplanned

__all__ = [
    "Conv",
    "Declined",
    "Engine",
    "Foreign",
    "Gemm",
    "Operand",
    "Operation",
    "Program",
    "Target",
    "Task",
    "Unplanned",
    "available",
    "default_directory",
]
