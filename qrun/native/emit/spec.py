"""What a kernel is specialised on; everything else is an argument at run time."""

from __future__ import annotations

from qrun.declare.frozen import frozen


@frozen
class KernelSpec:
    """One kernel.

    kind:    dense (products over packed k) or depthwise (one input channel per output channel) or interleaved
             (the same, 64 channels and four taps at a time); point or pair (a function of one code, or of two);
             amx, amx_copy (products on tiles, rows read in place or copied first); clipped (products of four added in
             16 bits); widened (products of 16 bits);
             runs, elements, blocks (copies); max_pool, sum_pool, mean_pool; quantize, quantize_image, dequantize;
             softmax; lrn (local response normalization); elementwise (functions of elements, and of what those make); standardize (layer
             normalization); shares (softmax of float32); mean; float_product (products of float32 matrices),
             float_depthwise; scale (sums to results), pack_rows and pack_columns (weights of a run), range and codes
             (quantization of a run).
    isa:     name of the instruction set.
    rows, vectors: the register block (point, pair: vectors pieces of 16 bytes at once, 0 for single bytes; pools:
             vectors of `rows` bytes, quantization: `rows` elements at once, both 0 vectors where only some of 16 exist;
             quantize_image: `vectors` planes; amx: rows of one tile or two; softmax: `rows` codes at once, or 0; elementwise,
             standardize, shares, mean: `rows` elements at once).
    unroll:  k-steps of 4 bytes per turn of the inner loop (dense, clipped); bytes of an element, or of a vector (copies);
             taps per turn (pools).
    form:    how results are made of accumulators (emit/spec.py); the functions (elementwise).
    out:     u8, s8, i32 or f32; bytes (copies).
    signed:  activations are int8.
    prefetch: 64-byte lines of the next panel's weights fetched per turn of the inner loop (dense).
    operands: the kind of each operand (elementwise), or where they are (float_product).
    """

    kind: str
    isa: str
    rows: int
    vectors: int
    unroll: int
    form: str
    out: str
    signed: bool
    prefetch: int = 0
    operands: str = ""

    def key(self) -> str:
        sign = "s" if self.signed else "u"
        block, more = f"{self.rows}x{self.vectors}x{self.unroll}", f"-{self.operands}" if self.operands else ""
        return f"{self.kind}-{self.isa}-{block}-{sign}-{self.form}-{self.out}-p{self.prefetch}{more}"


MAGIC = 12582912.0
MAGIC_BITS = 0x4B400000
TABLE = 256
LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
BYTES = {"y32": 12, "x32": 8, "f64": 8, "ort": 4, "table": 4 * TABLE + 8, "i32": 0}
"""Bytes of constants per channel."""
WIDE = ("i32", "f32")
"""Results of four bytes."""
TAIL = "tail-"
_FIELDS = {"m": 1, "a": 1, "r": 0, "c": 2}
"""Steps of a form that begins with TAIL, and float32 constants of each: times m, plus a, the greater of that and 0, cut to
lie within the two of c; each rounded to float32, the first one's operand the sum as float32."""

SOURCES = ("source0*", "source1*", "source2*", "source3*")
"""Where the operands of m and a come from: arguments of the kernel that prepares the constants."""


def constant_bytes(form: str) -> int:
    """Bytes of a form's constants per channel."""
    return 4 * sum(map(_FIELDS.__getitem__, form[len(TAIL) :])) if form.startswith(TAIL) else BYTES[form]
