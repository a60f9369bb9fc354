"""Machine code that runs: IR compiled and cached, kernels called with structs of arguments, threads, aligned memory.

Imported by `proof`, `kernels` and `plan`. It knows no operation in particular, and no program.
"""
