"""Emitters of LLVM IR: one module per family of kernels, built on typed values, loops and the primitives of the
instruction sets.

Imported by `machine`, which compiles the IR, and by `proof` and `kernels`, for the layout of arguments. It is the only
package that names an instruction set or a feature of a CPU. It knows no operation: shapes are run-time arguments.
"""
