"""The native engine: kernels compiled for this CPU. Arrays and numbers in, arrays out.

May be imported by `ops` and everything above it, and is the only importer of llvmlite and ctypes. It knows no ONNX: no node,
no operator name, no model.
"""

from qrun.native.cache import default_directory
from qrun.native.calls import Buffer, Rooms
from qrun.native.codes import Codes
from qrun.native.conv import Conv
from qrun.native.dynamic import Matmul
from qrun.native.engine import Engine
from qrun.native.epilogue import Target
from qrun.native.errors import Declined, Undecided, Unplanned
from qrun.native.finish import requantization
from qrun.native.gemm import Gemm
from qrun.native.isa import available
from qrun.native.operation import Operand, Operation
from qrun.native.placement import Chain, Foreign, Task
from qrun.native.program import Program

__all__ = [
    "Buffer",
    "Chain",
    "Codes",
    "Conv",
    "Declined",
    "Engine",
    "Foreign",
    "Gemm",
    "Matmul",
    "Operand",
    "Operation",
    "Program",
    "Rooms",
    "Target",
    "Task",
    "Undecided",
    "Unplanned",
    "available",
    "default_directory",
    "requantization",
]
