"""A planned integer product on AMX tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.amx import STEP, TILE, groups, scratch_bytes
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.layout import Layout
from qrun.native.kernels.product import FAR_WEIGHTS, Product, lanes_of, pack
from qrun.native.kernels.results import PanelRun
from qrun.native.kernels.tiling import Tables, choose, tables
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, Ints, aligned
from qrun.native.proof.fold import Int8s

_WASTE = 6
"""Tiles may do so many times the products that count; beyond, dense kernels take over."""
_SCRATCH = 1 << 20
"""Bytes of a thread's memory."""
_SHARED_WEIGHTS = 512 << 10
"""Bytes of weights beyond which threads take channels, each its own, and not rows."""
_UNITS_PER_THREAD, _UNIT_MACS = 8, 1 << 22
"""Units that even out how long threads take; and products of one, beside which taking it costs little."""
_GROUPS, _INPUTS = 8, 32
"""Up to so many groups, of at least so many inputs each, run group by group."""


@frozen
class TiledPart:
    """A kernel call, and what it takes to point it at operands that lie differently.

    tables: how rows are tiled whose pixels are so many bytes apart. itemsize: of results. x_start: the input channel
            where its group begins.
    """

    section: KernelCall
    tables: Callable[[int], Tables]
    itemsize: int
    x_start: int = 0

    def of_group(self, group: int, inputs: int, outputs: int) -> TiledPart:
        """The same for the channels of a group, of which each has so many."""
        section = replace(self.section, first=self.section.first + group * outputs)
        return replace(self, section=section, x_start=group * inputs)

    def placed(self, layout: Layout) -> KernelCall:
        """The call on activations and results that lie as `layout` says; constants are shared."""
        section, made = self.section, self.tables(layout.pixel)
        words = {"x*": self.x_start, "x_image": layout.x_image, "line": made.line}
        words |= {"y*": section.first * self.itemsize, "y_image": layout.y_image, "y_row": layout.y_row}
        arrays = {"places*": made.places, "targets*": made.targets, "gather*": made.gather}
        read = self.x_start + (layout.images - 1) * layout.x_image + made.read if made.read else 0
        written = layout.y_bytes((section.first + section.channels) * self.itemsize)
        return section.changed(words, arrays, extents=(read, written))


def tiled(product: Product) -> list[TiledPart]:
    """Kernel calls group by group, or for all groups merged;
    none if tiles would do too much that counts for nothing."""
    if product.group == 1:
        return _tiled(product)
    if product.group <= _GROUPS and product.k >= _INPUTS:
        made = [_tiled(product.alone(group)) for group in range(product.group)]
        if all(made):
            return [part.of_group(g, product.k, product.each) for g, parts in enumerate(made) for part in parts]
    merged = product.merged()
    return _tiled(merged) if merged.group == 1 else []


def _tiled(product: Product) -> list[TiledPart]:
    """The calls for a product of one group."""
    layout, folded, window, stored = product.layout, product.folded, product.window, product.stored
    n, taps, k = folded.centred.shape
    if not k:
        return []
    mode, cost = choose(window, layout.pixel, k, stored)
    macs = cost * TILE * STEP * -(-n // TILE) * TILE
    if macs >= _WASTE * layout.rows * taps * k * n:
        return []
    product = product.by_lines() if mode == "lines" else product
    weights, sources = product.folded.taps
    chunks, shares = _cut(product, macs, weights.nbytes)
    laid = partial(tables, window, k, mode, stored, tuple(sources), chunks)
    parts = [_part(product, run, weights, laid, shares) for run in product.panels]
    return parts if all(part.section.scratch <= _SCRATCH for part in parts) else []


def _cut(product: Product, macs: int, weights: int) -> tuple[int, int]:
    """(chunks, shares): about eight units of work per thread, of rows or, with many weights, of channels."""
    if product.engine.threads == 1:
        return 1, 1
    units = min(_UNITS_PER_THREAD * product.engine.threads, macs * product.layout.images // _UNIT_MACS)
    units = max(1, -(-units // product.layout.images))
    blocks = -(-product.layout.rows // (2 * TILE))
    panels = -(-len(product.folded.centred) // (product.isa.vectors * product.isa.lanes))
    if weights > _SHARED_WEIGHTS:
        shares = min(panels, units)
        return -(-units // shares), shares
    chunks = min(blocks, units)
    return chunks, -(-units // chunks)


def _part(product: Product, run: PanelRun, weights: Int8s, laid: Callable[[int], Tables], shares: int) -> TiledPart:
    """The call for one run of panels. laid: `tables` of a TiledPart."""
    first, vectors, panels, form = run
    results, n, made = product.results, len(weights), laid(product.layout.pixel)
    pick = lanes_of(first, panels * vectors * TILE, n).reshape(panels, -1)
    kind = "amx_copy" if made.piece else "amx"
    spec = KernelSpec(kind, product.isa.name, TILE * made.high, vectors, 1, form, results.out, product.signed)
    turns = made.chunk * len(groups(spec))
    if weights.size > FAR_WEIGHTS and turns > 1:
        spec = replace(
            spec, prefetch=next(lines for lines in (1, 4, 16) if lines * turns >= TILE * vectors or lines == 16)
        )
    share = -(-panels // min(shares, panels))
    known = {
        "gathered": made.gather.shape[1],
        "depth": max(made.piece, 1),
        "pitch": made.pitch,
        "blocks": len(made.places),
        "taps": made.taps,
        "steps": made.steps,
        "rows": made.rows,
        "panels": panels,
        "shares": -(-panels // share),
        "share": share,
        "chunks": -(-len(made.places) // made.chunk),
        "chunk": made.chunk,
    }
    known["tiles"] = product.layout.images * known["chunks"] * known["shares"]
    total = made.taps * made.steps * STEP
    key = "tiled", pick.shape, pick.tobytes(), spec.rows, spec.vectors, total
    arrays = {
        "weights*": product.folded.memo.once(key, lambda: _packed(product.engine, weights, pick, spec, total)),
        "padding*": product.padding(max(made.piece, 1)),
    }
    scratch = -(-scratch_bytes(spec, made.copy) // STEP) * STEP
    section = product.section(spec, pick, arrays, known, scratch)
    return TiledPart(section, laid, results.size)


def _packed(engine: Engine, weights: Int8s, pick: Ints, spec: KernelSpec, total: int) -> Array:
    """int8 [N, taps, k] as panels of groups of vectors:
    [total / 4][channels of the group][4], zero where nothing is."""
    depth = total // weights.shape[1]
    picks = [pick[:, group.start * TILE : group.stop * TILE] for group in groups(spec)]
    parts = [pack(engine, weights, own, depth).reshape(len(pick), -1) for own in picks]
    return np.concatenate(parts, axis=1, out=aligned((len(pick), total // 4 * spec.vectors * TILE), np.int32))
