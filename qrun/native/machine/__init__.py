"""Compiles, caches and calls machine code: IR, kernels with argument structs, threads, aligned memory.

Imported by `proof`, `kernels` and `plan`. It knows no operation in particular, and no program.
"""
