"""Plans whose products run on AMX tiles: every way to tile, gaps between rows, threads,
and when tiles are not worth it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import OBJECTS, Array, codes, engine, needs_amx
from helpers.native_cases import conv_case, reference, run, target_of
from helpers.placed import run_placed
from onnx import helper

import qrun
from qrun.native.kernels import tiled
from qrun.native.kernels.conv import SUM_KINDS, Conv, Gemm, dynamic_sums
from qrun.native.kernels.layout import Window
from qrun.native.kernels.tiled import Mode, TileGrid
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand
from qrun.native.proof.epilogue import Target
from qrun.ops.conv import conv_integer
from qrun.ops.matmulinteger import matmul_integer

F = np.float32


def everywhere(monkeypatch: pytest.MonkeyPatch, mode: Mode | None = None) -> None:
    """Use tiles however much is wasted, and in this mode where it is possible."""
    chosen = tiled.choose

    def choose(window: Window, pixel: int, depth: int, stored: bool) -> tuple[Mode, int]:
        best, cost = chosen(window, pixel, depth, stored)
        possible = not stored and (mode != "lines" or window.dilations[1] == 1)
        if mode and possible and tiled.plan_tiling(window, pixel, depth, mode, stored):
            return mode, cost
        return best, cost

    monkeypatch.setattr(tiled, "choose", choose)
    monkeypatch.setattr(tiled, "_WASTE", 1 << 40)
    monkeypatch.setattr(tiled, "_UNIT_MACS", 1 << 16)
    monkeypatch.setattr(tiled, "_SHARED_WEIGHTS", 1 << 14)


def plan(case: dict[str, Any], target: Target | None, threads: int) -> Conv:
    return Conv(
        engine("amx", threads), case["x"].shape, case["w"], x_zero_point=case["x_zero_point"],
        w_zero_point=case["w_zero_point"], bias=case["B"], target=target, **case["geometry"],
    )  # fmt: skip


@needs_amx
@pytest.mark.parametrize("mode", [None, "in place", "pixels", "lines"])
@pytest.mark.parametrize("threads", [1, 3])
def test_random_convolutions_equal_the_reference(
    mode: Mode | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere(monkeypatch, mode)
    rng = np.random.default_rng(90 + threads)
    seen = set()
    for number in range(45):
        case = conv_case(rng)
        if case is None:
            continue
        arith = ("exact", "ort")[number % 4 == 3]
        conv = plan(case, target_of(case, arith), threads)
        kinds = {section.spec.kind for section in conv.tight}
        assert kinds.isdisjoint({"amx", "amx_copy"}) != conv.tiled
        assert conv.tiled or case["geometry"]["group"] > 1
        seen |= kinds
        message = f"case {number}: {case['x'].shape} {case['w'].shape} {case['geometry']}"
        want = reference(case, arith)
        assert np.array_equal(run(conv, case["x"]), want), message
        if number % 3 == 0:
            gaps = [0 if conv.lines else case["x"].shape[1] + 1 + number % 70, want.shape[1] + 5]
            x = np.ascontiguousarray(case["x"])
            assert np.array_equal(run_placed(conv.engine, conv, [x], gaps, bool(number % 2)), want), (message, gaps)
    assert ("amx_copy" if mode in ("pixels", "lines") else "amx") in seen


@needs_amx
@pytest.mark.parametrize("at_end", [True, False])
def test_rows_with_gaps_between_unreadable_pages(at_end: bool) -> None:
    """As they lie in wider buffers: 3x3 with and without padding, strides, pointwise."""
    rng = np.random.default_rng(91)
    for channels, m, size, kernel, geometry in (
        (64, 70, (14, 14), (1, 1), {}),
        (40, 64, (9, 7), (3, 3), {"pads": (1, 1, 1, 1)}),
        (40, 64, (9, 8), (3, 3), {}),
        (64, 32, (15, 15), (3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        (100, 20, (8, 12), (1, 1), {"strides": (2, 2)}),
        (65, 64, (30,), (5,), {"dilations": (2,), "pads": (4, 3)}),
    ):
        x = codes(rng, (2, channels, *size), "u8")
        w = codes(rng, (m, channels, *kernel), "s8")
        target = Target(F(0.1), np.full(m, 1e-3, F), F(0.7), "u8", 9)
        conv = Conv(engine("amx"), x.shape, w, x_zero_point=np.uint8(121), target=target, **geometry)
        assert conv.tiled
        other = Conv(engine("avx512vnni"), x.shape, w, x_zero_point=np.uint8(121), target=target, **geometry)
        assert not other.tiled
        want = run(other, x)
        for gaps in ((0, 0), (channels + 3, m), (channels + 64, m + 1)):
            assert np.array_equal(run_placed(conv.engine, conv, [x], gaps, at_end), want), (channels, gaps)


@needs_amx
def test_products_of_few_rows_or_little_k_stay_as_they_are() -> None:
    zero = np.uint8(0)
    for rows, k, n, want in ((1, 768, 768, False), (2, 768, 768, False), (4, 768, 768, True), (128, 768, 100, True),
                             (128, 4, 64, False), (64, 64, 1, False), (50, 0, 20, False)):  # fmt: skip
        assert Gemm(engine("amx"), (rows, k), np.zeros((k, n), np.int8), x_zero_point=zero).conv.tiled == want, (
            rows,
            k,
        )
    for group, want in ((2, True), (4, False), (16, False)):
        w = np.zeros((64, 64 // group, 3, 3), np.int8)
        assert Conv(engine("amx"), (1, 64, 8, 8), w, x_zero_point=zero, group=group).tiled == want, group


@needs_amx
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_products_with_zero_points_known_late(kind: str) -> None:
    rng = np.random.default_rng(92)
    for m, k, n in ((17, 65, 33), (40, 128, 130), (16, 256, 64), (3, 70, 5)):
        for threads in (1, 3):
            a, b = codes(rng, (2, m, k), kind), codes(rng, (k, n), "u8")
            zeros = codes(rng, (), kind), codes(rng, (n,), "u8")
            native = engine("amx", threads)
            gemm = Gemm(native, a.shape, b, x_zero_point=np.zeros((), a.dtype), w_zero_point=zeros[1], kinds=SUM_KINDS)
            assert gemm.conv.tiled == (m > 3)
            prepare, sums = dynamic_sums(gemm, Operand((), a.dtype))
            got = native.run(sums, [a, native.run(prepare, [zeros[0]])])
            assert np.array_equal(got, matmul_integer(a, b, *zeros)), (m, k, n)


def test_tiles_cover_every_row_and_few_others() -> None:
    for height in (1, 2, 3, 7, 20):
        for width in (1, 2, 7, 14, 15, 16, 17, 28, 33):
            for down, across in ((width, 1), (width + 2, 1), (width + 20, 1), (3 * width, 2), (4 * width + 8, 4)):
                grid = TileGrid.of(height, width, down * 8, across * 8)
                rows, starts = grid.tiles()
                covered = grid.numbers(starts[:, None] + np.arange(rows) * grid.across)
                assert set(covered.reshape(-1).tolist()) - {-1} == set(range(height * width))
                assert starts.min() >= 0
                assert starts.max() + (rows - 1) * grid.across <= (height - 1) * down * 8 + (width - 1) * across * 8
                assert 1 <= rows <= 16
                assert len(starts) <= height * -(-width // 16) + 1
                y, x = np.divmod(np.arange(height * width), width)
                assert np.array_equal(grid.numbers(y * down * 8 + x * across * 8), np.arange(height * width))


def test_what_serves_is_read_in_place() -> None:
    def mode(image: tuple[int, int], kernel: tuple[int, int], depth: int, stored: bool = False, **more: Any) -> str:
        return tiled.choose(Window.of(image, kernel, **more), depth, depth, stored)[0]

    pads = (1, 1, 1, 1)
    assert mode((14, 14), (1, 1), 64) == "in place"
    assert mode((14, 14), (3, 3), 64) == "in place"
    assert mode((14, 14), (3, 3), 64, pads=pads) == "pixels"
    assert mode((56, 56), (3, 3), 16, pads=pads) == "lines"
    assert mode((56, 56), (3, 3), 16, pads=pads, dilations=(1, 2)) == "pixels"
    assert mode((224, 224), (7, 7), 21, True, pads=(3, 3, 3, 3), strides=(2, 2)) == "in place"


def network() -> onnx.ModelProto:
    """Convolutions whose operands are parts of a concatenation's wider buffer, and depthwise ones between them."""
    rng = np.random.default_rng(93)
    held: dict[str, Array] = {}
    nodes: list[Any] = []

    def keep(name: str, array: Array) -> str:
        held[name] = array
        return name

    scale, zero = keep("s", np.array(0.05, F)), keep("z", np.array(117, np.uint8))

    def conv(x: str, y: str, inputs: int, outputs: int, k: int, group: int = 1) -> None:
        w = keep(f"{y}_w", codes(rng, (outputs, inputs // group, k, k), "s8"))
        spread = 74 * 128 * np.sqrt(inputs / group * k * k) / 90
        factor = keep(f"{y}_s", rng.uniform(0.5, 2, outputs).astype(F) / F(spread))
        names = [x, scale, zero, w, factor, keep(f"{y}_z", np.zeros(outputs, np.int8)), scale, zero]
        more = {"pads": [k // 2] * 4, "group": group}
        nodes.append(helper.make_node("QLinearConv", names, [y], y, **more))

    conv("x", "a", 40, 64, 3)
    conv("a", "b", 64, 48, 1)
    conv("a", "c", 64, 40, 3)
    nodes.append(helper.make_node("Concat", ["b", "c"], ["bc"], "bc", axis=1))
    conv("b", "d", 48, 80, 3)
    conv("bc", "e", 88, 64, 1)
    conv("c", "f", 40, 40, 3, 40)
    outputs = {name: typed(np.uint8, [1, c, 13, 13]) for name, c in (("d", 80), ("e", 64), ("f", 40))}
    return make_model(nodes, {"x": typed(np.uint8, [1, 40, 13, 13])}, outputs, held, opset=13)


@needs_amx
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_network_runs_on_tiles_and_equals_the_reference(threads: int) -> None:
    model = network()
    x = {"x": codes(np.random.default_rng(94), (1, 40, 13, 13), "u8")}
    want = qrun.Session(model, backend="reference").run(x)
    assert all(len(np.unique(array)) > 50 for array in want.values())
    kinds = {}
    for isa in ("amx", "avx512vnni"):
        session = qrun.Session(model, backend="native", cache=OBJECTS, threads=threads, isa=isa)
        for _ in range(4):
            got = session.run(x)
            assert all(np.array_equal(got[name], array) for name, array in want.items())
        events = session.execute(x, observe=False).events
        kinds[isa] = {e.node.name: {s.kernel.partition("-")[0] for s in e.sections} for e in events if e.macs}
    assert kinds["amx"] == {
        "a": {"amx_copy"}, "b": {"amx"}, "c": {"amx_copy"}, "d": {"amx_copy"}, "e": {"amx"}, "f": {"depthwise"},
    }  # fmt: skip
    assert set.union(*kinds["avx512vnni"].values()) == {"dense", "depthwise"}


@needs_amx
def test_memory_of_a_thread_grows_and_is_kept() -> None:
    from qrun.native.machine.call import scratch

    first = scratch(1000)
    assert first % 64 == 0
    assert scratch(10) == first
    grown = scratch(1 << 22)
    assert scratch(1000) == grown


@needs_amx
def test_plans_are_made_once_per_geometry() -> None:
    w = np.zeros((64, 64, 3, 3), np.int8)
    for _ in range(2):
        before = tiled.tables.cache_info().misses
        Conv(Engine.create("amx", OBJECTS), (1, 64, 21, 19), w, x_zero_point=np.uint8(0), pads=(1, 1, 1, 1))
    assert tiled.tables.cache_info().misses == before


@needs_amx
def test_groups_run_one_by_one() -> None:
    """Also between rows with gaps."""
    rng = np.random.default_rng(12)
    for group, k, each in ((2, 34, 34), (4, 68, 68), (3, 40, 5), (8, 33, 17)):
        x, w = codes(rng, (2, 9, 7, group * k + 6), "u8"), codes(rng, (group * each, k, 3, 3), "s8")
        plan = Conv(engine("amx"), (2, group * k, 9, 7), w, x_zero_point=np.uint8(77), group=group, pads=(1, 1, 1, 1))
        assert {section.spec.kind[:3] for section in plan.tight} == {"amx"}
        part = np.moveaxis(x[..., 3 : 3 + group * k], -1, 1)
        want = conv_integer(part, w, np.uint8(77), np.int8(0), group=group, pads=(1, 1, 1, 1))
        assert np.array_equal(run(plan, part), want)
        y = np.full((2, 9, 7, group * each + 9), -7, np.int32)
        flat = np.concatenate([x.reshape(-1)[3:], np.zeros(4096, np.uint8)])
        engine("amx").execute(plan.sections((group * k + 6, 4 * (group * each + 9))), [flat, y.reshape(-1)[4:]])
        assert np.array_equal(np.moveaxis(y[..., 4 : 4 + group * each], -1, 1), want)
        assert (y[..., :4] == -7).all()
        assert (y[..., 4 + group * each :] == -7).all()
