"""Generated batch normalization of float32 pixels, channels innermost, in float64."""

from __future__ import annotations

from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.values import Value

NAMES = ("x*", "y*", "x_row", "y_row", "rows", "chunk", "channels", "last", "tiles", "mean*", "factor*", "bias*")
"""One 8-byte word each.

chunk             rows of a tile
channels, last    of a row, and where its last block starts: it overlaps the one before
mean, factor, bias  float64 [channels]
"""


@emitter("batch_norm")
class BatchNormEmitter(KernelEmitter):
    """(x - mean) * factor + bias, each step rounded to float64, the last to float32; `rows` channels at once."""

    names = NAMES

    def tile(self, tile: Value) -> None:
        w, a, n = self.w, self.a, self.spec.rows
        with w.part(tile, a.chunk, a.rows) as row, w.loop(0, a.channels, n) as at:
            channel = at.index.least(a.last)
            mean, factor, bias = (
                (start + channel * 8).load(f"<{n} x double>", 8) for start in (a.mean, a.factor, a.bias)
            )
            x = (a.x + row * a.x_row + channel * 4).load(f"<{n} x float>", 4).double()
            made = (x - mean) * factor + bias
            (a.y + row * a.y_row + channel * 4).store(made.single(), 4)
