"""What writes LLVM IR: one module for each family of kernels, on typed values,
loops and the instruction sets' primitives.

Imported by `machine`, which compiles what is written here, and by `proof` and `kernels`, which read how arguments are
laid out. The only room that names an instruction set or a feature of a CPU.
It knows no operation: shapes are run-time arguments.
"""
