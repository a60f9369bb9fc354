"""Native convolutions and products against the reference kernels, bit for bit, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import THOROUGH, codes, engine, every_isa, thin
from helpers.native_cases import conv_case, reference, run, target_of

from qrun.native.emit.spec import taps_per_turn
from qrun.native.errors import Declined
from qrun.native.kernels.conv import Conv, Gemm
from qrun.native.kernels.product import even_rows
from qrun.native.machine.engine import stage
from qrun.native.proof.epilogue import Target
from qrun.ops.conv import conv_integer
from qrun.ops.matmulinteger import matmul_integer, qlinear_matmul

F = np.float32


def plan_conv(isa: str, case: dict[str, Any], target: Target | None, threads: int = 1) -> Conv:
    return Conv(
        engine(isa, threads), case["x"].shape, case["w"], x_zero_point=case["x_zero_point"],
        w_zero_point=case["w_zero_point"], bias=case["B"] if target else None, target=target, **case["geometry"],
    )  # fmt: skip


@thin(*range(3), other=3, name="seed", products=True)
def test_random_convolutions_equal_the_reference(isa: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(20):
        case = conv_case(rng)
        if case is None:
            continue
        arith = ("exact", "ort")[number % 4 == 3]
        y = run(plan_conv(isa, case, target_of(case, arith)), case["x"])
        want = reference(case, arith)
        assert y.dtype == want.dtype
        assert np.array_equal(y, want), (
            f"seed {seed} case {number}: {case['x'].shape} {case['w'].shape} {case['geometry']}"
        )


@every_isa
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_depthwise_convolutions_equal_the_reference(isa: str, kind: str) -> None:
    """Kernels side by side share what they read, others do not; panels of channels are whole or not."""
    rng = np.random.default_rng(60)
    kinds = set()
    for number, channels in enumerate((2, 15, 16, 31, 32, 40, 63, 64, 65, 72, 88, 130, 144)):
        for case_number, (kernel, image, geometry) in enumerate(edges.DEPTHWISE):
            if isa not in THOROUGH and (number + case_number) % 3:
                continue
            for w_zero in (0, 3, -100):
                w = codes(rng, (channels, 1, *kernel), "s8")
                case = {
                    "x": codes(rng, (2, channels, *image), kind), "x_zero_point": codes(rng, (), kind), "w": w,
                    "w_scale": rng.uniform(0.001, 0.003, channels).astype(F), "w_zero_point": np.array(w_zero, np.int8),
                    "y_zero_point": codes(rng, (), kind), "out": kind, "B": None,
                    "geometry": {"group": channels, **geometry},
                }  # fmt: skip
                plan = plan_conv(isa, case, target_of(case))
                assert np.array_equal(run(plan, case["x"]), reference(case)), (channels, kernel, geometry, w_zero)
                kinds |= {(section.spec.kind, section.spec.unroll) for section in plan.tight}
    expected = {1: {("depthwise", 1)}, 2: {("depthwise", 1), ("interleaved", 1)}}
    every = {("depthwise", 1), ("interleaved", 1), ("interleaved", 2)}
    assert kinds == expected.get(taps_per_turn(engine(isa).isa), every)


@every_isa
def test_random_integer_convolutions_equal_the_reference(isa: str) -> None:
    rng = np.random.default_rng(50)
    for number in range(25 if isa in THOROUGH else 10):
        case = conv_case(rng)
        if case is not None:
            y = run(plan_conv(isa, case, None), case["x"])
            want = conv_integer(case["x"], case["w"], case["x_zero_point"], case["w_zero_point"], **case["geometry"])
            assert y.dtype == want.dtype
            assert np.array_equal(y, want), f"case {number}: {case['x'].shape} {case['w'].shape} {case['geometry']}"


@thin("u8", "s8", None, name="out", products=True)
def test_sizes_around_every_tile(isa: str, out: str | None) -> None:
    rng = np.random.default_rng(3)
    chosen = engine(isa).isa
    lanes = chosen.lanes
    panel = lanes * chosen.vectors
    some = {1, lanes - 1, lanes + 1, panel, panel + 1}
    for columns in some | ({2, lanes, panel - 1, 2 * panel + 3} if isa in THOROUGH else set()):
        block = chosen.rows[min(chosen.vectors, -(-columns // lanes))]
        for rows in {0, 1, block - 1, block, block + 1, 2 * block}:
            for k in ((0, 1, 4, 5, 33) if isa in THOROUGH else (0, 33)) if rows in (1, block) else (7,):
                check_gemm(rng, isa, rows, k, columns, out)


def check_gemm(rng: np.random.Generator, isa: str, rows: int, k: int, columns: int, out: str | None) -> None:
    kinds = [str(kind) for kind in rng.choice(["u8", "s8"], 2)]
    a, b = codes(rng, (rows, k), kinds[0]), codes(rng, (k, columns), kinds[1])
    az, bz = codes(rng, (), kinds[0]), codes(rng, (columns,), kinds[1])
    message = f"{rows}x{k}x{columns} {kinds} {out}"
    if out is None:
        y = run(Gemm(engine(isa), a.shape, b, x_zero_point=az, w_zero_point=bz), a)
        assert np.array_equal(y, matmul_integer(a, b, az, bz)), message
        return
    scales = rng.uniform(0.001, 0.01, columns).astype(F)
    target = Target(F(0.5), scales, F(0.7), out, 7)
    y = run(Gemm(engine(isa), a.shape, b, x_zero_point=az, w_zero_point=bz, target=target), a)
    yz = np.array(7, y.dtype)
    assert np.array_equal(y, qlinear_matmul(a, np.array(F(0.5)), az, b, scales, bz, np.array(F(0.7)), yz)), message


@every_isa
def test_sums_wrap_like_int32(isa: str) -> None:
    a = np.full((3, 70000), 255, np.uint8)
    b = np.full((70000, 20), -128, np.int8)
    b[:, ::2] = 127
    zero = np.array(0, np.uint8)
    y = run(Gemm(engine(isa), (3, 70000), b, x_zero_point=zero), a)
    assert y[0, 0] == 255 * 127 * 70000 - 2**32
    assert y[0, 1] == -255 * 128 * 70000 + 2**32
    scale = np.array([2.0**-24], F)
    quantized = run(Gemm(engine(isa), (3, 70000), b, x_zero_point=zero, target=Target(F(1), scale, F(1), "s8", 3)), a)
    args = (np.array(F(1)), zero, b, scale.reshape(()), np.array(0, np.int8), np.array(F(1)), np.array(3, np.int8))
    assert np.array_equal(quantized, qlinear_matmul(a, *args))


@pytest.mark.parametrize("most", [1, 2, 5, 12])
def test_rows_are_cut_into_as_few_blocks_as_can_be_that_overlap_least(most: int) -> None:
    assert even_rows(16, 5) == 4
    for rows in range(1, 200):
        blocks, each = -(-rows // most), even_rows(rows, most)
        assert each <= most
        assert blocks * (each - 1) < rows <= blocks * each


def test_any_number_of_threads_gives_the_same_result() -> None:
    rng = np.random.default_rng(8)
    x = codes(rng, (2, 64, 30, 30), "u8")
    for group, m in ((1, 130), (64, 64)):
        case = {"x": x, "w": codes(rng, (m, 64 // group, 3, 3), "s8"), "x_zero_point": np.uint8(3), "w_zero_point": None,
                "B": None, "w_scale": np.full(m, 3e-4, F), "out": "u8", "y_zero_point": np.uint8(100),
                "geometry": {"group": group, "pads": (1, 1, 1, 1)}}  # fmt: skip
        plans = [plan_conv("", case, target_of(case), threads) for threads in (1, 2, 5)]
        assert max(s.tiles for s in plans[1].tight) > 1
        first, *others = (run(plan, x) for plan in plans)
        assert all(np.array_equal(first, other) for other in others)


def test_channels_last_memory_is_read_in_place() -> None:
    rng = np.random.default_rng(9)
    x = np.moveaxis(codes(rng, (1, 6, 6, 16), "u8"), -1, 1)
    plan = Conv(engine(""), x.shape, codes(rng, (4, 16, 1, 1), "s8"), x_zero_point=np.uint8(0))
    assert np.shares_memory(stage(x, plan, plan.tight, 0), x)
    assert np.array_equal(run(plan, x), run(plan, np.ascontiguousarray(x)))
    assert np.array_equal(run(plan, x[:, :, ::-1, ::-1]), run(plan, x)[:, :, ::-1, ::-1])


@every_isa
def test_parts_of_wider_buffers(isa: str) -> None:
    rng = np.random.default_rng(11)
    for group, m in ((1, 21), (2, 40), (34, 34)):
        x, w = codes(rng, (2, 5, 4, 40), "u8"), codes(rng, (m, 34 // group, 3, 2), "s8")
        plan = Conv(
            engine(isa),
            (2, 34, 5, 4),
            w,
            x_zero_point=np.uint8(77),
            group=group,
            pads=(1, 0, 1, 1),
        )
        y = np.full((2, *plan.window.out, 50), -7, np.int32)
        engine(isa).execute(plan.sections((40, 200)), [x.reshape(-1)[3:], y.reshape(-1)[9:]])
        part = np.moveaxis(x[..., 3:37], -1, 1)
        want = conv_integer(part, w, np.uint8(77), np.int8(0), group=group, pads=(1, 0, 1, 1))
        assert np.array_equal(np.moveaxis(y[..., 9 : 9 + m], -1, 1), want)
        assert (y[..., :9] == -7).all()
        assert (y[..., 9 + m :] == -7).all()
        with pytest.raises(ValueError, match="cannot lie 33 bytes apart"):
            plan.sections((33, 0))


def test_inputs_are_never_written() -> None:
    rng = np.random.default_rng(10)
    x, w = codes(rng, (1, 3, 5, 5), "u8"), codes(rng, (4, 3, 3, 3), "s8")
    x.flags.writeable = w.flags.writeable = False
    run(Conv(engine(""), x.shape, w, x_zero_point=np.uint8(1), pads=(1, 1, 1, 1)), x)


@pytest.mark.parametrize(
    ("shape", "w", "more", "reason"),
    [
        ((1, 3, 4, 4, 4), (2, 3, 1, 1, 1), {}, "spatial axes"),
        ((1, 3, 4, 4), (2, 2, 1, 1), {}, "channels do not fit"),
        ((1, 3, 4, 4), (2, 3, 5, 1), {}, "larger than the padded image"),
        ((1, 3, 4, 4), (2, 3, 1, 1), {"strides": (0, 1)}, "out of range"),
        ((1, 3, 4, 4), (2, 3, 1, 1), {"pads": (-1, 0, 0, 0)}, "out of range"),
        ((1, 3, 4, 4), (2, 3, 1, 1), {"pads": (0, 0)}, "one value per spatial axis"),
        ((1, 3, 4, 4), (2, 3, 1, 1), {"pads": (2**40, 2**40, 0, 0)}, "too large"),
        ((-1, 3, 4, 4), (2, 3, 1, 1), {}, "channels do not fit"),
        ((1, 3, 4, 4), (2, 3, 1, 1), {"bias": np.zeros(2, np.float32)}, "not int32"),
        ((1, 3, 4, 4), (2, 3, 1, 1), {"w_zero_point": np.zeros(2, np.uint8)}, "do not fit the weights"),
        ((1, 2**31, 4, 4), (0, 2**31, 1, 1), {"bias": np.zeros(3, np.int32)}, "bias"),
    ],
)
def test_what_it_does_not_do_is_declined_with_a_reason(
    shape: tuple[int, ...], w: tuple[int, ...], more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Declined, match=reason):
        Conv(engine(""), shape, np.zeros(w, np.int8), x_zero_point=np.uint8(0), **more)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x_scale": np.float64(1)}, "float32"),
        ({"w_scale": np.ones((1, 1), F)}, "float32 vector"),
        ({"out": "u4"}, "type u4"),
        ({"arith": "onnx-ref"}, "onnx-ref arithmetic"),
        ({"zero_point": 256}, "outside 0..255"),
        ({"out": "s8", "zero_point": 128}, "outside -128..127"),
        ({"w_scale": np.ones(3, F)}, "neither one value nor one per output channel"),
    ],
)
def test_targets_it_cannot_reach_are_declined(change: dict[str, Any], reason: str) -> None:
    values = {"x_scale": F(1), "w_scale": np.ones(1, F), "y_scale": F(1), "out": "u8", "zero_point": 0} | change

    def plan() -> Conv:
        target = Target(**values)
        return Conv(engine(""), (1, 3, 4), np.zeros((2, 3, 1), np.int8), x_zero_point=np.uint8(0), target=target)

    with pytest.raises(Declined, match=reason):
        plan()


def test_another_shape_or_type_than_planned_is_refused() -> None:
    plan = Conv(engine(""), (1, 3, 4, 4), np.zeros((2, 3, 1, 1), np.int8), x_zero_point=np.uint8(0))
    for x in (np.zeros((1, 3, 4, 5), np.uint8), np.zeros((1, 3, 4, 4), np.int8)):
        with pytest.raises(ValueError, match="planned"):
            run(plan, x)
