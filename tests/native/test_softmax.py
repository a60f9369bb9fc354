"""The prepared QLinearSoftmax equals the reference kernel for every input, near ties too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_support import OBJECTS
from support import MS, assert_equal, node_model

import qrun
from qrun.native import Declined, Engine
from qrun.ops import Context
from qrun.ops import qlinearsoftmax as softmax
from qrun.ops._native import NativeKernel, Site

F = np.float32
NAMES = ("X", "X_scale", "x_zero_point", "y_scale", "y_zero_point")
LENGTHS = (1, 2, 3, 10, 255, 256, 1000, 2047, 2048, 5000)


def lowered(inputs: Any, **attributes: Any) -> NativeKernel:
    site = Site(Engine.create(), tuple(inputs), (False, True, True, True, True), NAMES, attributes, Context())
    return softmax.lower_qlinear_softmax(site)


def reference(inputs: Any, **attributes: Any) -> Any:
    return softmax.qlinear_softmax(*inputs, **attributes)


def case(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, xs: float, ys: float) -> list[Any]:
    spread = rng.choice([1, 4, 40, 300])
    x = np.clip(rng.normal(rng.integers(0, 256), spread, shape).round(), 0, 255).astype(np.uint8).view(dtype)
    zero = rng.choice([0, 1, 77, 128, 255]).astype(np.uint8).view(dtype)
    return [x, np.array(F(xs)), np.zeros((), dtype), np.array(F(ys)), np.array(zero)]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("length", LENGTHS)
def test_rows(length: int, dtype: Any) -> None:
    rng = np.random.default_rng(length)
    for rows in (1, 2, 9):
        for xs in (1e-20, 0.004, 0.07, 0.125, 1.0, 90.0, 1e30):
            for ys in (1 / 256, 1 / 255, 1e-4, 0.0037 / length, 1e-45, 2.0, 0.5 / length):
                inputs = case(rng, (rows, length), dtype, xs, ys)
                kernel = lowered(inputs, axis=-1, opset=13)
                want = reference(inputs, axis=-1, opset=13)
                assert_equal(kernel.run(inputs), want, f"{rows} rows of {length}, scales {xs} {ys}")


@pytest.mark.parametrize(
    ("shape", "axis", "opset"),
    [((1, 300, 1, 1), 1, 11), ((3, 4, 5), 1, 11), ((3, 4, 5), 0, 12), ((3, 4, 5), -1, 11), ((3, 4, 5), 2, 13), ((7,), 0, 13),
     ((40, 400, 3), 2, 13)],
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
            got = kernel.run([x, *inputs[1:]])
            assert_equal(got, want)
            assert_equal(x, before)
            assert got.flags.c_contiguous


@pytest.mark.parametrize("rows", [1, 3])
def test_only_doubtful_results_that_occur_go_to_the_reference(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two maxima and two negligible values each maximum is a hair below 1/2."""
    calls: list[int] = []
    kept = softmax._exact

    def counted(codes: Any, xs: float, ys: Any) -> Any:
        calls.append(1)
        return kept(codes, xs, ys)

    monkeypatch.setattr(softmax, "_exact", counted)
    usual = np.tile(np.array([[9, 7, 9, 2]], np.uint8), (rows, 1))
    flat, hair = usual.copy(), usual.copy()
    flat[-1] = 200
    hair[-1] = (255, 255, 0, 0)
    for x, xs, ys, expected in ((usual, 0.1, 1 / 256, 0), (flat, 0.1, 1 / 256, 1), (hair, 4.0, 1.0, 1)):
        inputs = [x, np.array(F(xs)), None, np.array(F(ys)), np.array(np.uint8(3))]
        kernel = lowered(inputs, axis=-1, opset=13)
        calls.clear()
        got = kernel.run(inputs)
        assert len(calls) == expected
        assert_equal(got, reference(inputs, axis=-1, opset=13))


def test_distances_that_do_not_occur_are_in_no_doubt() -> None:
    codes = np.array([[9, 7, 9, 2]], np.uint8)
    rows = softmax._Rows.of(4, 0.1, 1 / 256, 0, codes.dtype)
    for distance, doubtful in ((0, True), (1, False), (2, True), (7, True), (200, False)):
        levels = rows.levels.copy()
        levels[distance] = 20.5 * rows.weights[[0, 2, 0, 7]].sum()
        assert (rows._replace(levels=levels).results(codes) is None) == doubtful


def test_what_is_left_to_the_reference() -> None:
    x = np.zeros((2, 3), np.uint8)
    for xs, ys, axis in ((0, 1, -1), (-0.1, 1, -1), (0.1, -1, -1), (np.inf, 1, -1), (0.1, 1, 0)):
        with pytest.raises(Declined):
            lowered([x, np.array(F(xs)), None, np.array(F(ys)), np.array(np.uint8(0))], axis=axis, opset=13)


def test_sessions() -> None:
    rng = np.random.default_rng(8)
    for shape in ((1, 1000), (4, 50)):
        inputs = case(rng, shape, np.uint8, 0.08, 1 / 256)
        made, feeds = node_model("QLinearSoftmax", inputs, {"axis": -1, "opset": 13}, domain=MS, outputs=[np.uint8],
                                 constants=[1, 2, 3, 4])  # fmt: skip
        want = qrun.Session(made, backend="reference").execute(feeds)
        session = qrun.Session(made, backend="native", cache=OBJECTS)
        for _ in range(3):
            got = session.execute(feeds)
            assert got.events[0].backend == "native"
            assert_equal(got.outputs["y0"], want.outputs["y0"])
