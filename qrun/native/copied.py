"""Which products copy activations first, and in which form."""

from __future__ import annotations

from qrun.native.blocked import Run
from qrun.native.clipped import ROWS, clipped, clips
from qrun.native.product import Part, Product
from qrun.native.widened import DOTS, widened

_LEAST_ROWS = 16
"""Rows below which it matters more that 16-bit weights are twice as many bytes."""
_FEW = 2
"""Panels from which on it pays to look which activations are small."""


def copied(product: Product) -> list[Part]:
    """Kernel calls for a product of one group; none where copies do not serve."""
    layout = product.layout
    runs = _runs(product)
    if product.isa.dot not in DOTS or not layout.k or any(form in ("table", "i32") for *_, form in runs):
        return []
    wide = layout.rows >= _LEAST_ROWS
    small = clips(product)
    parts = []
    for run in runs:
        _, vectors, panels, _ = run
        if small and layout.rows >= ROWS[vectors] and (panels >= _FEW or not wide):
            parts.append(clipped(product, run))
        elif wide:
            parts.append(widened(product, run))
        else:
            return []
    return parts


def _runs(product: Product) -> list[Run]:
    """A single run of panels, which may overlap, unless some channels need another form than others."""
    channels, lanes = len(product.folded.centred), product.isa.lanes
    runs = product.panels(channels, 1)
    form = runs[0][3]
    if any(run[3] != form for run in runs):
        return runs
    sizes = [(vectors, -(-channels // (vectors * lanes))) for vectors in range(product.isa.vectors, 0, -1)]
    vectors, panels = min(sizes, key=lambda size: (size[0] + 1) * size[1])
    return [(0, vectors, panels, form)]
