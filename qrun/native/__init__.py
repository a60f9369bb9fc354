"""The native engine: kernels compiled for this CPU. Arrays and numbers in, arrays out.

May be imported by `ops` and everything above it, and is the only importer of llvmlite and ctypes. It knows no ONNX: no node,
no operator name, no model.
"""

from qrun.native.emit.isa import available
from qrun.native.errors import Declined, Undecided, Unplanned
from qrun.native.kernels.conv import Conv, Gemm
from qrun.native.kernels.dynamic import Matmul
from qrun.native.kernels.finish import requantization
from qrun.native.kernels.ranges import DynamicQuantizer
from qrun.native.machine.batch import Buffer, BufferPool
from qrun.native.machine.cache import default_directory
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Operation
from qrun.native.plan.placement import Chain, PythonStep, Task
from qrun.native.plan.program import Program
from qrun.native.proof.epilogue import Target

__all__ = [
    "Buffer",
    "BufferPool",
    "Chain",
    "Conv",
    "Declined",
    "DynamicQuantizer",
    "Engine",
    "Gemm",
    "Matmul",
    "Operand",
    "Operation",
    "Program",
    "PythonStep",
    "Target",
    "Task",
    "Undecided",
    "Unplanned",
    "available",
    "default_directory",
    "requantization",
]
