"""Products on copies of activations, widened to 16 bits or clipped: all sizes, codes and weights, gaps, ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, LIMITS, OBJECTS, SETS, TYPES, Array, Guarded, codes, emulating, engine
from helpers.native_cases import reference, run, target_of, touched

from qrun.native import kernels, machine
from qrun.native.emit.isa import ISAS as ALL
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels import copied
from qrun.native.kernels.conv import Conv
from qrun.native.kernels.copied import WIDENED_ROWS
from qrun.native.machine.codegen import compile_object
from qrun.native.machine.compile import kernel_text
from qrun.native.machine.engine import Engine
from qrun.native.proof import fold
from qrun.native.proof.epilogue import Target
from qrun.ops.conv import conv_integer

F = np.float32
Random = np.random.Generator
Shape = tuple[int, ...]
WIDENING = [isa for isa in ALL if isa.widens]
KINDS = ["widened", *["clipped"] * ("avx2" in ISAS)]


def every_widening(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrize `isa`."""
    return emulating(pytest.mark.parametrize("isa", [isa.name for isa in WIDENING if isa.name in SETS])(test))


def every_own(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrize `isa` and `kind`."""
    names = [isa.name for isa in WIDENING if isa.name in SETS]
    cases = [(name, kind) for name in names for kind in KINDS if kind == "widened" or name == "avx2"]
    return emulating(pytest.mark.parametrize(("isa", "kind"), cases)(test))


def case_of(
    rng: Random,
    shape: Shape,
    w_shape: Shape,
    geometry: dict[str, Any],
    kinds: tuple[str, str, str],
    extreme: bool,
    offsets: int = 256,
) -> dict[str, Any]:
    """extreme: all codes are ends of their type. offsets: how many zero points x may have, from the least code."""
    x, w, zero = codes(rng, shape, kinds[0]), codes(rng, w_shape, kinds[1]), codes(rng, w_shape[:1], kinds[1])
    if extreme:
        x, w, zero = (
            np.asarray(rng.choice(LIMITS[k], v.shape), TYPES[k])
            for v, k in ((x, kinds[0]), (w, kinds[1]), (zero, kinds[1]))
        )
    return {
        "x": x, "x_zero_point": np.array(LIMITS[kinds[0]][0] + rng.integers(0, offsets), TYPES[kinds[0]]),
        "w": w, "w_zero_point": zero, "out": kinds[2], "y_zero_point": codes(rng, (), kinds[2]),
        "w_scale": (rng.uniform(0.01, 0.03, w_shape[0]) / np.sqrt(np.prod(w_shape[1:]))).astype(F),
        "B": rng.integers(-900, 900, w_shape[0]).astype(np.int32), "geometry": geometry,
    }  # fmt: skip


def grouped(rng: Random, number: int, kinds: tuple[str, str, str], extreme: bool, small: bool) -> dict[str, Any]:
    group, k, each, (images, *axes), kernel, geometry = edges.GROUPED[number]
    shape, w_shape = (images, group * k, *axes), (group * each, k, *kernel)
    return case_of(rng, shape, w_shape, {**geometry, "group": group}, kinds, extreme, 32 if small else 256)


def planned(case: dict[str, Any], own: Engine) -> Conv:
    return Conv(
        own, case["x"].shape, case["w"], x_zero_point=case["x_zero_point"], w_zero_point=case["w_zero_point"],
        bias=case["B"], target=target_of(case), **case["geometry"],
    )  # fmt: skip


@pytest.mark.parametrize("near", [1, 1 << 17])
@pytest.mark.parametrize("threads", [1, 2])
@every_widening
def test_codes_and_weights_without_groups(isa: str, threads: int, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "_NEAR", near)
    monkeypatch.setattr(copied, "_FEW", 1 << 30)
    rng = np.random.default_rng(12)
    for number in range(len(edges.WIDENED)):
        for kinds in (("u8", "s8", "u8"), ("s8", "u8", "s8"), ("u8", "u8", "s8")):
            for extreme in (False, True):
                case = case_of(rng, *edges.WIDENED[number], kinds, extreme)
                plan = planned(case, engine(isa, threads))
                assert {section.spec.kind for section in plan.tight} == {"widened"}
                assert np.array_equal(run(plan, case["x"]), reference(case)), (edges.WIDENED[number], kinds, extreme)


@every_widening
def test_few_rows_are_read_in_place(isa: str) -> None:
    rng = np.random.default_rng(14)
    w, zero = codes(rng, (40, 20, 1), "s8"), np.uint8(128)
    target = Target(F(0.3), np.full(40, 0.01, F), F(0.3), "u8", 7)
    for rows, results, kind in ((15, target, "dense"), (16, target, "widened"), (16, None, "widened")):
        plan = Conv(engine(isa), (1, 20, rows), w, x_zero_point=zero, target=results)
        assert {section.spec.kind for section in plan.tight} == {kind}


@every_widening
def test_sums_of_panels_that_overlap(isa: str) -> None:
    """int32 results are four bytes, also where the last panel begins."""
    rng = np.random.default_rng(15)
    for channels in (9, 15, 17, 25, 40, 41, 100):
        for x_zero in (np.uint8(3), np.uint8(140)):
            x, w = codes(rng, (2, 20, 33), "u8"), codes(rng, (channels, 20, 1), "s8")
            plan = Conv(engine(isa), x.shape, w, x_zero_point=x_zero)
            assert {section.spec.kind for section in plan.tight} <= {"widened", "clipped"}
            assert np.array_equal(run(plan, x), conv_integer(x, w, np.array(x_zero))), f"{channels} channels, {x_zero}"


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
                case = grouped(rng, number, kinds, extreme, kind == "clipped")
                plan = planned(case, engine(isa, threads))
                assert {s.spec.kind for s in plan.tight} == {kind if k >= 8 else "widened"}
                assert np.array_equal(run(plan, case["x"]), reference(case)), (edges.GROUPED[number], kinds, extreme)


@every_own
def test_groups_share_the_form_of_results(isa: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel whose sums are large takes its neighbours with it, and the same channels of the other group."""
    force(kind, monkeypatch)
    rng = np.random.default_rng(22)
    case = grouped(rng, 5, ("u8", "s8", "u8"), False, True)
    case["B"][5], case["w_scale"][5] = 1 << 30, 1  # beyond what float32 holds exactly, whatever serves the others
    plan = planned(case, engine(isa))
    assert len({s.spec.form for s in plan.tight}) > 1
    assert {s.spec.kind for s in plan.tight} == {kind}
    assert np.array_equal(run(plan, case["x"]), reference(case))


@every_own
def test_parts_of_wider_buffers(isa: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(kind, monkeypatch)
    rng = np.random.default_rng(23)
    for number in range(len(edges.GROUPED)):
        case = grouped(rng, number, ("u8", "s8", "u8"), False, kind == "clipped")
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
        case = grouped(rng, number, ("s8", "s8", "u8"), False, kind == "clipped")
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
        case = {"w_scale": np.full(3 * each, 0.01, F), "out": "u8", "y_zero_point": 7}
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
                "w_scale": np.full(len(w), 0.001, F), "B": np.zeros(len(w), np.int32), "out": "u8",
                "y_zero_point": np.uint8(3), "geometry": {},
            }  # fmt: skip
            plan = planned(case, engine(isa))
            kinds = {s.spec.kind for s in plan.tight}
            if vectors > 1 and rows >= {"clipped": 4, "widened": 16}[kind]:
                assert kinds == {kind}
            assert all(s.spec.rows <= rows for s in plan.tight)
            assert np.array_equal(run(plan, x), reference(case)), (rows, vectors, kinds)


@pytest.mark.parametrize("isa", WIDENING, ids=lambda isa: isa.name)
def test_every_width_compiles_for_every_cpu(isa: Isa) -> None:
    for blocks in (copied.block_rows(isa, 1 << 10), {n: WIDENED_ROWS[n] for n in range(1, isa.vectors + 1)}):
        for vectors, rows in blocks.items():
            for out, form in (("u8", "y32"), ("s8", "x32"), ("u8", "f64"), ("u8", "ort")):
                for signed in (False, True):
                    spec = KernelSpec("widened", isa.name, rows, vectors, 1, form, out, signed)
                    assert compile_object(kernel_text(spec), isa)


needs_avx2 = pytest.mark.skipif("avx2" not in ISAS, reason="this CPU has no AVX2")
ACTIVATIONS: dict[str, Callable[[Random, Shape], Array]] = {
    "small": lambda rng, shape: rng.integers(0, 64, shape),
    "after a rectifier": lambda rng, shape: np.minimum(np.maximum(rng.normal(0, 60, shape), 0), 255),
    "a few large": lambda rng, shape: np.where(rng.random(shape) < 0.02, 255, 40),
    "one block large": lambda rng, shape: np.where(np.arange(shape[-1]) < 4, 255, rng.integers(0, 64, shape)),
    "uniform": lambda rng, shape: rng.integers(0, 256, shape),
    "all large": lambda rng, shape: np.full(shape, 255),
}
WEIGHTS: dict[str, Callable[[Random, Shape], Array]] = {
    "uniform": lambda rng, shape: rng.integers(-128, 128, shape),
    "normal": lambda rng, shape: np.clip(rng.normal(0, 40, shape), -127, 127),
    "alone or together": lambda rng, shape: together(shape) * rng.choice([-1, 1], (shape[0], *[1] * (len(shape) - 1))),
    "least": lambda rng, shape: np.full(shape, -128),
    "largest": lambda rng, shape: np.full(shape, 127),
}


def together(shape: Shape) -> Array:
    """One large weight among zeros in every other channel, equal ones in the rest."""
    flat = np.full((shape[0], int(np.prod(shape[1:]))), 55)
    flat[::2] = 100 * (np.arange(flat.shape[1]) % 8 == 0)
    return flat.reshape(shape)


@pytest.mark.parametrize("near", [200, 1 << 18])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_bounds_hold_for_every_channel_and_sign(kind: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "_NEAR_BOUNDS", near)
    rng = np.random.default_rng(4)
    weights = WEIGHTS[kind](rng, (30, 2, 21)).astype(np.int8)
    each, first = (bound.astype(np.int64).reshape(2, 3, 2, 2, 2) for bound in fold.lane_bounds(weights, 24))
    padded = np.zeros((30, 2, 24), np.int64)
    padded[:, :, :21] = np.maximum(weights, -127)
    lanes = padded.reshape(30, 2, 3, 2, 2, 2)
    for name, make in ACTIVATIONS.items():
        x = np.asarray(make(rng, (200, 2, 24)), np.int64).reshape(200, 1, 2, 3, 2, 2, 2)
        most = x.max(axis=(4, 6))[:, 0]
        limit = (each * x[:, 0]).sum(axis=(3, 5)) + first[:, :, 0, :, 0] * most
        assert not first[..., 1].any()
        for sign in (1, -1):
            sums = np.where(lanes * sign > 0, x * lanes * sign, 0).sum(axis=(4, 6))
            assert (sums <= limit[:, None]).all(), name


@needs_avx2
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_results_do_not_depend_on_how_large_activations_are(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "_FEW", 1)
    rng = np.random.default_rng(5)
    for shape, w_shape, geometry in edges.CLIPPED:
        for activations, make in ACTIVATIONS.items():
            for weights, make_weights in WEIGHTS.items():
                unsigned = make(rng, shape).astype(np.uint8)
                case = {
                    "x": unsigned if kind == "u8" else (unsigned ^ 128).view(np.int8),
                    "x_zero_point": np.array(rng.integers(0, 20) - 128 * (kind == "s8"), TYPES[kind]),
                    "w": make_weights(rng, w_shape).astype(np.int8), "w_zero_point": np.int8(0),
                    "w_scale": (rng.uniform(0.0005, 0.002, w_shape[0]) / w_shape[1]).astype(F),
                    "y_zero_point": codes(rng, (), kind), "out": kind,
                    "B": rng.integers(-900, 900, w_shape[0]).astype(np.int32), "geometry": geometry,
                }  # fmt: skip
                plan = planned(case, engine("avx2", threads))
                assert {section.spec.kind for section in plan.tight} == {"clipped"}
                y = run(plan, case["x"])
                assert np.array_equal(y, reference(case)), (shape, w_shape, activations, weights)
