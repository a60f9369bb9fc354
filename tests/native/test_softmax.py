"""The native QLinearSoftmax equals the reference kernel for every input, near ties too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.native import EMULATED, OBJECTS, Guarded
from helpers.support import MS, assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.emit.spec import VBMI
from qrun.native.errors import Declined, Undecided
from qrun.native.kernels import point
from qrun.native.kernels.softmax import Softmax
from qrun.native.machine.engine import Engine
from qrun.ops import Context
from qrun.ops import qlinearpool as softmax
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

F = np.float32
NAMES = ("X", "X_scale", "x_zero_point", "y_scale", "y_zero_point")


ENGINES = {threads: Engine.create(cache=OBJECTS, threads=threads) for threads in (1, 2)}


def lowered(inputs: Any, threads: int = 1, **attributes: Any) -> NativeKernel:
    site = LoweringContext(
        ENGINES[threads],
        tuple(inputs),
        (False, True, True, True, True),
        NAMES,
        attributes,
        Context(),
        lambda args, ctx: softmax.qlinear_softmax(*args, **attributes, ctx=ctx),
    )
    return softmax.lower_qlinear_softmax(site)


def reference(inputs: Any, **attributes: Any) -> Any:
    return softmax.qlinear_softmax(*inputs, **attributes)


def made(kernel: NativeKernel, inputs: Any, **attributes: Any) -> Any:
    """What a session makes of the inputs: the reference's results where the kernel cannot decide one."""
    try:
        return kernel.run(inputs)
    except Undecided:
        return reference(inputs, **attributes)


def case(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, xs: float, ys: float) -> list[Any]:
    spread = rng.choice([1, 4, 40, 300])
    x = np.clip(rng.normal(rng.integers(0, 256), spread, shape).round(), 0, 255).astype(np.uint8).view(dtype)
    zero = rng.choice([0, 1, 77, 128, 255]).astype(np.uint8).view(dtype)
    return [x, np.array(F(xs)), np.zeros((), dtype), np.array(F(ys)), np.array(zero)]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("length", edges.CODE_ROWS)
def test_rows(length: int, dtype: Any) -> None:
    rng = np.random.default_rng(length)
    for rows in (1, 2, 9):
        for xs in (1e-20, 0.004, 0.07, 0.125, 1.0, 90.0, 1e30):
            for ys in (1 / 256, 1 / 255, 1e-4, 0.0037 / length, 1e-45, 2.0, 0.5 / length):
                inputs = case(rng, (rows, length), dtype, xs, ys)
                kernel = lowered(inputs, axis=-1, opset=13)
                want = reference(inputs, axis=-1, opset=13)
                assert_equal(
                    made(kernel, inputs, axis=-1, opset=13), want, f"{rows} rows of {length}, scales {xs} {ys}"
                )


@pytest.mark.parametrize(
    ("shape", "axis", "opset"),
    [((1, 300, 1, 1), 1, 11), ((3, 4, 5), 1, 11), ((3, 4, 5), 0, 12), ((3, 4, 5), -1, 11), ((3, 4, 5), 2, 13), ((7,), 0, 13),
     ((40, 400, 3), 2, 13), ((40, 30, 3), 0, 13), ((2, 17, 3, 5), 1, 13), ((2, 300, 4), -2, 17), ((1, 9, 1), 1, 13)],
)  # fmt: skip
def test_axes_and_inputs_with_gaps(shape: tuple[int, ...], axis: int, opset: int) -> None:
    rng = np.random.default_rng(5)
    for dtype in (np.uint8, np.int8):
        inputs = case(rng, shape, dtype, 0.06, 1 / 256)
        kernel, want = lowered(inputs, axis=axis, opset=opset), reference(inputs, axis=axis, opset=opset)
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        wide[...] = inputs[0]
        for x in (inputs[0], np.asfortranarray(inputs[0]), wide):
            before = x.copy()
            got = made(kernel, [x, *inputs[1:]], axis=axis, opset=opset)
            assert_equal(got, want)
            assert_equal(x, before)
            assert got.flags.c_contiguous or opset >= 13  # a session orders what a turned node makes


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every use of the reference kernel's arithmetic."""
    found: list[int] = []
    kept = softmax._softmax_exact

    def counted(codes: Any, xs: float, ys: Any) -> Any:
        found.append(1)
        return kept(codes, xs, ys)

    monkeypatch.setattr(softmax, "_softmax_exact", counted)
    return found


def parameters(x: Any, xs: float, ys: float) -> list[Any]:
    return [x, np.array(F(xs)), None, np.array(F(ys)), np.array(np.uint8(3))]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [4, 300])
@pytest.mark.parametrize("threads", [1, 2])
def test_only_doubtful_results_go_to_the_reference(rows: int, length: int, threads: int, calls: list[int]) -> None:
    """Of two maxima and negligible other values each maximum is a hair below 1/2."""
    usual = np.tile(np.resize(np.array([9, 7, 9, 2], np.uint8), length), (rows, 1))
    flat, hair = usual.copy(), usual.copy()
    flat[-1] = 200
    hair[-1] = 0
    hair[-1, 1:3] = 255
    for x, xs, ys, expected in ((usual, 0.1, 1 / 256, 0), (flat, 0.1, 1 / 256, 0), (hair, 4.0, 1.0, 1)):
        inputs = parameters(x, xs, ys)
        kernel = lowered(inputs, threads, axis=-1, opset=13)
        calls.clear()
        got = made(kernel, inputs, axis=-1, opset=13)
        assert len(calls) == expected
        assert_equal(got, reference(inputs, axis=-1, opset=13))


@pytest.mark.parametrize("length", [64, 200, 1000])
def test_what_float32_leaves_in_doubt_float64_decides(length: int) -> None:
    """Quotients a hundred-millionth of a step beside a tie, of a code that occurs."""
    rng = np.random.default_rng(6)
    for _ in range(40):
        codes = rng.integers(100, 140, (1, length)).astype(np.uint8)
        shares = np.exp(-0.1 * (float(codes.max()) - codes[0]))
        shares /= shares.sum()
        y_scale = float(shares[7] / (rng.integers(1, 9) + 0.5 + 1e-8 * rng.choice([-1, 1])))
        planned = Softmax(ENGINES[1], codes.shape, length, 0.1, y_scale, np.uint8(0))
        want = np.minimum(np.rint(shares / y_scale), 255).astype(np.uint8)
        assert_equal(ENGINES[1].run(planned, [codes])[0], want)


@pytest.mark.parametrize("length", [4, 300])
def test_distances_that_do_not_occur_are_in_no_doubt(length: int) -> None:
    codes = np.resize(np.array([9, 7, 9, 2], np.uint8), (1, length))
    total = np.exp(-0.1 * (9.0 - codes)).sum()
    for distance, doubtful in ((0, True), (1, False), (2, True), (7, True), (200, False)):
        planned = Softmax(ENGINES[1], codes.shape, length, 0.1, 1 / 256, np.uint8(0))
        for name in ("levels*", "singles*"):
            planned.tables[name][255 - distance] = 20.5 * total
        if doubtful:
            with pytest.raises(Undecided):
                ENGINES[1].run(planned, [codes])
        else:
            assert ENGINES[1].run(planned, [codes]).any()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_doubtful_result_within_a_program(threads: int, calls: list[int]) -> None:
    usual, hair = np.arange(200, dtype=np.uint8).reshape(1, 200), np.zeros((1, 200), np.uint8)
    hair[0, :2] = 255
    made, feeds = node_model("QLinearSoftmax", parameters(usual, 4.0, 1.0), {"axis": -1, "opset": 13}, domain=MS,
                             outputs=[np.uint8], constants=[1, 3, 4])  # fmt: skip
    session = qrun.Session(made, threads=threads, cache=OBJECTS)
    (name,) = feeds
    for x, expected in ((usual, None), (usual, 0), (hair, 1), (usual, 0), (hair, 1)):
        calls.clear()
        got = session.run({name: x})["y0"]
        assert expected is None or len(calls) == expected
        assert_equal(got, reference(parameters(x, 4.0, 1.0), axis=-1, opset=13))


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("features", ["all", "none"])
@every_width
def test_instruction_sets_and_sizes(isa: str, features: str, at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if features == "none" or isa in EMULATED:
        monkeypatch.setattr(point, "_host", lambda: frozenset({VBMI} if features == "all" else ()))
    engine, guard = Engine.create(isa, OBJECTS), Guarded()
    rng = np.random.default_rng(3)
    for length in (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 1000):
        for dtype in (np.uint8, np.int8):
            inputs = case(rng, (3, length), dtype, 0.05, 0.7 / length)
            planned = Softmax(engine, (3, length), length, float(inputs[1]), float(inputs[3]), inputs[4])
            planes = engine.isa.lanes == 16 and features == "all" and length >= 64 and VBMI in point._host()
            assert planned.tight[0].spec.form == ("planes" if planes else "table" if length >= 128 else "each")
            x, y = (guard.take(3 * length, at_end).view(dtype).reshape(3, length) for _ in range(2))
            x[...] = inputs[0]
            engine.execute(planned.tight, [x, y])
            assert_equal(y, reference(inputs, axis=-1, opset=13), f"{length} {dtype}")


@needs_qemu
@every_aarch64
def test_aarch64(isa: str, tmp_path: Path) -> None:
    native, rng, found = Foreign(isa), np.random.default_rng(4), []
    for length in (2, 15, 17, 127, 300):
        for dtype in (np.uint8, np.int8):
            inputs = case(rng, (3, length), dtype, 0.05, 0.7 / length)
            inputs[0][1] = 5
            planned = Softmax(native, (3, length), length, float(inputs[1]), float(inputs[3]), inputs[4])
            found.append((native.run(planned, inputs[:1]), reference(inputs, axis=-1, opset=13), length))
    native.finish(tmp_path)
    for got, want, length in found:
        assert_equal(got, want, str(length))


def test_what_is_left_to_the_reference() -> None:
    x = np.zeros((2, 3), np.uint8)
    for xs, ys, axis in ((0, 1, -1), (-0.1, 1, -1), (0.1, -1, -1), (np.inf, 1, -1)):
        with pytest.raises(Declined):
            lowered([x, np.array(F(xs)), None, np.array(F(ys)), np.array(np.uint8(0))], axis=axis, opset=13)


def test_sessions() -> None:
    rng = np.random.default_rng(8)
    for shape in ((1, 1000), (4, 50)):
        inputs = case(rng, shape, np.uint8, 0.08, 1 / 256)
        made, feeds = node_model(
            "QLinearSoftmax", inputs, {"axis": -1, "opset": 13}, domain=MS, outputs=[np.uint8], constants=[1, 2, 3, 4]
        )
        want = qrun.Session(made, backend="reference").execute(feeds)
        session = qrun.Session(made, backend="native", cache=OBJECTS)
        for _ in range(3):
            got = session.execute(feeds)
            assert got.events[0].backend == "native"
            assert_equal(got.outputs["y0"], want.outputs["y0"])


def test_what_first_inputs_saturate_is_not_told_of_later_ones() -> None:
    steep, calm = np.array([[0, 0, 0, 255]], np.uint8), np.array([[7, 7, 7, 8]], np.uint8)
    inputs = [steep, np.array(F(0.5)), np.zeros((), np.uint8), np.array(F(1 / 256)), np.array(np.uint8(0))]
    made, feeds = node_model(
        "QLinearSoftmax", inputs, {"axis": -1, "opset": 13}, domain=MS, outputs=[np.uint8], constants=[1, 2, 3, 4]
    )
    session = qrun.Session(made, backend="native", cache=OBJECTS)
    assert [o.kind for o in session.execute(feeds).events[0].observations] == ["saturated"]
    event = session.execute(dict.fromkeys(feeds, calm)).events[0]
    assert (event.backend, [o.kind for o in event.observations]) == ("native", ["few-codes"])
