"""Emitters of LLVM IR: one module per family of kernels, built on typed values, loops and the primitives of the
instruction sets.

`machine` imports this package to compile the IR; `proof` and `kernels` import it for the layout of arguments. It is the
only package that names an instruction set or a feature of a CPU. It knows no operation: shapes are run-time arguments.
"""
