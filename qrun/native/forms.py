"""The forms of requantization that kernels can execute, as data both the proof and the generator rely on.

y32    p = fma(float_with_bits(acc + MAGIC_BITS), a, -MAGIC * a); y = RNE(p * b): the bias carries MAGIC_BITS
x32    p = fl32(float32(acc) * a); y = RNE(p * b), without hardware fma y = RNE(fl32(p * b))
f64    y = RNE(fl64(acc * m))
ort    y = RNE(clip(fl32(float32(acc) * m))): onnxruntime's own arithmetic, for every m
table  y = number of thresholds that acc reaches: any monotone function of an int32
i32    the accumulator itself

All but i32 add the zero point after rounding and saturate.
"""

from __future__ import annotations

MAGIC = 12582912.0
MAGIC_BITS = 0x4B400000
TABLE = 256
LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
BYTES = {"y32": 12, "x32": 8, "f64": 8, "ort": 4, "table": 4 * TABLE + 8, "i32": 0}
"""Bytes of constants per channel."""
