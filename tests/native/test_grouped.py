"""Products of several groups on copies of activations: sizes around vectors and panels, gaps, ends of buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, LIMITS, OBJECTS, SETS, TYPES, Guarded, codes, emulating, engine
from helpers.native_cases import reference, run, target_of, touched

from qrun.native import kernels, machine
from qrun.native.emit.isa import ISAS as ALL
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels import copied
from qrun.native.kernels.conv import Conv
from qrun.native.machine.codegen import compile_object
from qrun.native.machine.compile import kernel_text
from qrun.native.machine.engine import Engine

KINDS = ["widened", *["clipped"] * ("avx2" in ISAS)]


def every_own(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrize `isa` and `kind`."""
    names = [isa.name for isa in ALL if isa.widens and isa.name in SETS]
    cases = [(name, kind) for name in names for kind in KINDS if kind == "widened" or name == "avx2"]
    return emulating(pytest.mark.parametrize(("isa", "kind"), cases)(test))


def case_of(
    rng: np.random.Generator, number: int, kinds: tuple[str, str, str], extreme: bool, small: bool
) -> dict[str, Any]:
    group, k, each, (images, *axes), kernel, geometry = edges.GROUPED[number]
    shape, w_shape = (images, group * k, *axes), (group * each, k, *kernel)
    x, w, zero = codes(rng, shape, kinds[0]), codes(rng, w_shape, kinds[1]), codes(rng, w_shape[:1], kinds[1])
    if extreme:
        x = np.asarray(rng.choice(LIMITS[kinds[0]], shape), TYPES[kinds[0]])
        w = np.asarray(rng.choice(LIMITS[kinds[1]], w_shape), TYPES[kinds[1]])
        zero = np.asarray(rng.choice(LIMITS[kinds[1]], w_shape[0]), TYPES[kinds[1]])
    bias = rng.integers(-900, 900, w_shape[0]).astype(np.int32)
    return {
        "x": x, "w": w, "w_zero_point": zero, "B": bias, "out": kinds[2], "y_zero_point": codes(rng, (), kinds[2]),
        "x_zero_point": np.array(LIMITS[kinds[0]][0] + rng.integers(0, 32 if small else 256), TYPES[kinds[0]]),
        "w_scale": (rng.uniform(0.01, 0.03, w_shape[0]) / np.sqrt(np.prod(w_shape[1:]))).astype(np.float32),
        "geometry": {**geometry, "group": group},
    }  # fmt: skip


def planned(case: dict[str, Any], own: Engine) -> Conv:
    return Conv(
        own, case["x"].shape, case["w"], x_zero_point=case["x_zero_point"], w_zero_point=case["w_zero_point"],
        bias=case["B"], target=target_of(case), **case["geometry"],
    )  # fmt: skip


def force(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the activations of every case, few as its rows and channels may be."""
    for name in ("_FEW", "_VECTORS", "_QUAD"):
        monkeypatch.setattr(copied, name, 0)
    if kind == "widened":
        monkeypatch.setattr(copied, "clips", lambda product: False)


@pytest.mark.parametrize("near", [1, 1 << 17])
@pytest.mark.parametrize("threads", [1, 2])
@every_own
def test_all_codes_and_weights(isa: str, kind: str, threads: int, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    force(kind, monkeypatch)
    monkeypatch.setattr(copied, "_NEAR", near)
    monkeypatch.setattr(copied, "_COPY", near)
    rng = np.random.default_rng(21)
    for number, (_, k, *_) in enumerate(edges.GROUPED):
        for kinds in (("u8", "s8", "u8"), ("s8", "u8", "s8")):
            for extreme in (False, True):
                case = case_of(rng, number, kinds, extreme, kind == "clipped")
                plan = planned(case, engine(isa, threads))
                assert {s.spec.kind for s in plan.tight} == {kind if k >= 8 else "widened"}
                assert np.array_equal(run(plan, case["x"]), reference(case)), (edges.GROUPED[number], kinds, extreme)


@every_own
def test_groups_share_the_form_of_results(isa: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel whose sums are large takes its neighbours with it, and the same channels of the other group."""
    force(kind, monkeypatch)
    rng = np.random.default_rng(22)
    case = case_of(rng, 5, ("u8", "s8", "u8"), False, True)
    case["B"][5] = 1 << 30
    plan = planned(case, engine(isa))
    assert len({s.spec.form for s in plan.tight}) > 1
    assert {s.spec.kind for s in plan.tight} == {kind}
    assert np.array_equal(run(plan, case["x"]), reference(case))


@every_own
def test_parts_of_wider_buffers(isa: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(kind, monkeypatch)
    rng = np.random.default_rng(23)
    for number in range(len(edges.GROUPED)):
        case = case_of(rng, number, ("u8", "s8", "u8"), False, kind == "clipped")
        plan = planned(case, engine(isa))
        x, want = np.moveaxis(case["x"], 1, -1), np.moveaxis(reference(case), 1, -1)
        ends = [(0, 0)] * (x.ndim - 1)
        wide = np.ascontiguousarray(np.pad(x, [*ends, (3, 4)], constant_values=251))
        y = np.full((*want.shape[:-1], want.shape[-1] + 9), 77, np.uint8)
        sections = plan.sections((wide.shape[-1], y.shape[-1]))
        flat = np.concatenate([wide.reshape(-1)[3:], np.zeros(max(s.extents[0] for s in sections), np.uint8)])
        engine(isa).execute(sections, [flat, y.reshape(-1)[5:]])
        assert np.array_equal(y[..., 5 : 5 + want.shape[-1]], want), edges.GROUPED[number]
        assert (y[..., :5] == 77).all()
        assert (y[..., 5 + want.shape[-1] :] == 77).all()


@pytest.mark.parametrize("at_end", [True, False])
@every_own
def test_nothing_beyond_the_buffers_is_touched(
    isa: str, kind: str, at_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(kind, monkeypatch)
    guard, rng = Guarded(), np.random.default_rng(24)
    guard.hold(monkeypatch, at_end, copied, machine.call, kernels.product, kernels.layout)
    own = Engine.create(isa, OBJECTS)
    for number in range(len(edges.GROUPED)):
        case = case_of(rng, number, ("s8", "s8", "u8"), False, kind == "clipped")
        plan = planned(case, own)
        x = np.ascontiguousarray(np.moveaxis(case["x"], 1, -1)).reshape(-1).view(np.uint8)
        held, y = (guard.take(nbytes, at_end) for nbytes in touched(plan))
        held[: x.size] = x[: held.size]
        monkeypatch.setattr(machine.call, "_own", threading.local())
        own.execute(plan.tight, [held, y])
        assert np.array_equal(y, np.moveaxis(reference(case), 1, -1).reshape(-1)), edges.GROUPED[number]


@every_own
def test_groups_of_few_channels_are_read_in_place(isa: str, kind: str) -> None:
    lanes = engine(isa).isa.lanes
    zero = np.uint8(0 if kind == "clipped" else 128)
    for k, each, want in ((20, 2 * lanes, "dense"), (4, 3 * lanes, "dense"), (20, 2 * lanes + 1, kind)):
        w = np.ones((3 * each, k, 1), np.int8)
        case = {"w_scale": np.full(3 * each, 0.01, np.float32), "out": "u8", "y_zero_point": 7}
        plan = Conv(engine(isa), (1, 3 * k, 16), w, x_zero_point=zero, group=3, target=target_of(case))
        assert {s.spec.kind for s in plan.tight} == {want}


@every_own
def test_blocks_are_no_higher_than_the_image(isa: str, kind: str) -> None:
    """Whatever the number of vectors: few rows are clipped if they are as many as a block may have,
    else read in place."""
    lanes, rng = engine(isa).isa.lanes, np.random.default_rng(25)
    for rows in (1, 3, 4, 7, 8, 15, 16):
        for vectors in (1, 3, 5):
            x, w = codes(rng, (1, 24, rows), "u8"), codes(rng, (vectors * lanes, 24, 1), "s8")
            case = {
                "x": x, "x_zero_point": np.uint8(0 if kind == "clipped" else 128), "w": w, "w_zero_point": np.int8(0),
                "w_scale": np.full(len(w), 0.001, np.float32), "B": np.zeros(len(w), np.int32), "out": "u8",
                "y_zero_point": np.uint8(3), "geometry": {},
            }  # fmt: skip
            plan = planned(case, engine(isa))
            kinds = {s.spec.kind for s in plan.tight}
            if vectors > 1 and rows >= {"clipped": 4, "widened": 16}[kind]:
                assert kinds == {kind}
            assert all(s.spec.rows <= rows for s in plan.tight)
            assert np.array_equal(run(plan, x), reference(case)), (rows, vectors, kinds)


@pytest.mark.parametrize("name", [isa.name for isa in ALL if isa.widens])
def test_every_width_compiles_for_every_cpu(name: str) -> None:
    isa = next(isa for isa in ALL if isa.name == name)
    for vectors, rows in copied.block_rows(isa, 1 << 10).items():
        for out, form in (("u8", "y32"), ("s8", "x32"), ("u8", "f64"), ("u8", "ort")):
            assert compile_object(kernel_text(KernelSpec("widened", name, rows, vectors, 1, form, out, True)), isa)
