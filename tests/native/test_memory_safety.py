"""Kernels read and write only what the plan says: every buffer stands against unreadable pages."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, OBJECTS, THOROUGH, Guarded, codes, needs_amx, thin
from helpers.native_cases import run, touched

import qrun.native.kernels.copied
import qrun.native.kernels.layout
import qrun.native.kernels.product
import qrun.native.kernels.results
import qrun.native.kernels.tiled
import qrun.native.machine.call
import qrun.native.machine.engine
from qrun.native import kernels, machine
from qrun.native.kernels.conv import Conv
from qrun.native.machine.engine import Engine, stage
from qrun.native.proof.epilogue import Target

F = np.float32


def guard_constants(monkeypatch: pytest.MonkeyPatch, guard: Guarded, at_end: bool) -> None:
    """Put every array of a plan against a guard page, as far as its 64-byte alignment allows."""
    modules = (
        machine.engine, kernels.layout, kernels.product, kernels.results, machine.call,
        kernels.tiled, kernels.copied,
    )  # fmt: skip
    guard.hold(monkeypatch, at_end, *modules)
    monkeypatch.setattr(kernels.tiled, "tables", kernels.tiled.tables.__wrapped__)


@pytest.mark.parametrize("at_end", [True, False])
@thin("u8", "s8", None, name="out", products=True)
def test_nothing_beyond_the_buffers_is_touched(
    isa: str, at_end: bool, out: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(isa, at_end, out, monkeypatch)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("out", ["u8", "s8", None])
@needs_amx
def test_nothing_beyond_the_buffers_is_touched_by_tiles(
    at_end: bool, out: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qrun.native.kernels.tiled, "_WASTE", 1 << 40)
    check("amx", at_end, out, monkeypatch)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("out", ["u8", "s8"])
@pytest.mark.skipif("avx2" not in ISAS, reason="this CPU has no AVX2")
def test_nothing_beyond_the_buffers_is_touched_by_clipped_products(
    at_end: bool, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qrun.native.kernels.copied, "SMALL", 255)
    monkeypatch.setattr(qrun.native.kernels.copied, "_FEW", 1)
    check("avx2", at_end, out, monkeypatch)


def check(isa: str, at_end: bool, out: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guarded()
    guard_constants(monkeypatch, guard, at_end)
    rng = np.random.default_rng(2)
    engine = Engine.create(isa, OBJECTS)
    channels = engine.isa.lanes * engine.isa.vectors
    tiles = [((1, c, r), (m, c, 1), {}) for c in (4, 7) for r in (1, 4, 5, 6) for m in (1, channels - 1, channels + 1)]
    cases = edges.GUARDED + (tiles if isa in THOROUGH else tiles[::3])
    for number, (shape, w_shape, geometry) in enumerate(cases):
        kind = ("u8", "s8")[number % 2]
        w, x_zero = codes(rng, w_shape, "s8"), codes(rng, (), kind)
        scale = np.full(w_shape[0], 0.003, F) if number % 3 else np.full(w_shape[0], np.nan, F)
        target = None if out is None else Target(F(0.1), scale, F(0.1), out, 5)
        plan = Conv(engine, shape, w, x_zero_point=x_zero, target=target, **geometry)
        x = codes(rng, shape, kind)
        source = stage(x, plan, plan.tight, 0)
        held, y = (guard.take(nbytes, at_end) for nbytes in touched(plan))
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)[: held.size]
        held[: flat.size] = flat
        y[:] = 0xA5
        monkeypatch.setattr(qrun.native.machine.call, "_own", threading.local())
        engine.execute(plan.tight, [held, y])
        want = np.ascontiguousarray(np.moveaxis(run(plan, x), 1, -1)).reshape(-1).view(np.uint8)
        assert np.array_equal(y, want), (shape, w_shape, geometry)
        if qrun.native.kernels.tiled._WASTE > 100:
            assert plan.tiled or not shape[1] or "group" in geometry


def test_buffers_that_are_too_small_are_refused() -> None:
    engine = Engine.create()
    plan = Conv(engine, (1, 4, 5), np.zeros((3, 4, 1), np.int8), x_zero_point=np.uint8(0))
    x, y = (np.zeros(nbytes, np.uint8) for nbytes in touched(plan))
    engine.execute(plan.tight, [x, y])
    with pytest.raises(ValueError, match="smaller than the plan needs"):
        engine.execute(plan.tight, [x[1:], y])
    with pytest.raises(ValueError, match="smaller than the plan needs"):
        engine.execute(plan.tight, [x, y[1:]])
