"""Native convolutions of float32 equal the reference's, bit for bit: the real sum rounded once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float_conv import alone, assert_placed, filled
from helpers.native import Array, engine
from helpers.placed import same_everywhere, same_runs
from helpers.sums import SPECIAL, all_in_doubt, assert_bits, beside_ties, exact
from helpers.support import node_model
from helpers.widths import every_width, thin_width

from qrun.native.errors import Declined
from qrun.native.kernels import float_conv
from qrun.native.kernels.float_conv import FloatConv
from qrun.ops.conv import conv
from qrun.ops.lowering.products import exact_sums

F = np.float32


def made(isa: str, x: Array, w: Array, bias: Array | None, threads: int = 1, **geometry: Any) -> FloatConv:
    return FloatConv(engine(isa, threads), x.shape, w, exact_sums(), bias=bias, **geometry)


def wanted(x: Array, w: Array, bias: Array | None, geometry: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(conv(x, w, bias, **{"group": 1, **geometry}))


def case(kind: str, rng: np.random.Generator, number: int) -> tuple[Array, Array, Array, dict[str, Any]]:
    x_shape, w_shape, geometry = edges.FLOAT_CONV[number]
    return *filled(kind, rng, x_shape, w_shape, w_shape[0]), geometry


@thin_width(*range(len(edges.FLOAT_CONV)), name="number")
@pytest.mark.parametrize("at_end", [True, False])
def test_geometries(isa: str, number: int, at_end: bool) -> None:
    x, w, bias, geometry = case("normal", np.random.default_rng(number), number)
    room = 4 * (x.shape[1] + 3), 4 * (w.shape[0] + 5)
    for given in (bias, None):
        plan = partial(made, isa, x, w, given, **geometry)
        assert_placed(isa, plan, x, wanted(x, w, given, geometry), at_end, room)


@every_width
def test_a_bias_that_is_nan_gives_the_one_nan(isa: str) -> None:
    rng = np.random.default_rng(8)
    bias = np.array([0xFFC00000, 0x7FC12345, 0x7F800001, 0x3F800000], "u4").view(F)
    x = rng.standard_normal((1, 4, 5, 5)).astype(F)
    for group in (1, 4):
        w = rng.standard_normal((4, 4 // group, 3, 3)).astype(F)
        want = wanted(x, w, bias, {"group": group})
        assert_bits(alone(made(isa, x, w, bias, group=group), x), want, str(group))


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for number in (0, 4, 6, 8, 9, 11):
        x, w, bias, geometry = case(kind, rng, number)
        for given in (bias, None):
            got = alone(made(isa, x, w, given, **geometry), x)
            assert_bits(got, wanted(x, w, given, geometry), f"{kind} {edges.FLOAT_CONV[number]}")


@every_width
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_one_pixel_that_is_not_finite(isa: str, odd: float) -> None:
    """It changes what reads it, and nothing else of its line or tile."""
    rng = np.random.default_rng(10)
    for channels, columns in ((1, 9), (3, 4), (12, 20), (20, 9)):
        x = rng.standard_normal((1, channels, 9, 30)).astype(F)
        w = rng.standard_normal((columns, channels, 3, 3)).astype(F)
        x[0, channels // 2, 4, 11], w[columns // 2] = odd, 0
        for bias in (None, rng.standard_normal(columns).astype(F)):
            want = wanted(x, w, bias, {"pads": (1, 1, 1, 1)})
            assert np.isfinite(want).any(axis=(0, 2, 3)).all()
            assert_bits(alone(made(isa, x, w, bias, pads=(1, 1, 1, 1)), x), want, f"{channels} {bias is None}")


@every_width
def test_nothing_is_decided_by_the_ends_alone(isa: str) -> None:
    """If all sums are in doubt, they are settled; and if that decides nothing either, all are added exactly."""
    rng = np.random.default_rng(2)
    for lost in (None, 2.0):
        for number in (0, 1, 4, 6, 8, 10, 12):
            x, w, bias, geometry = case("normal", rng, number)
            with all_in_doubt(lost):
                got = alone(made(isa, x, w, bias, **geometry), x)
            assert_bits(got, wanted(x, w, bias, geometry), f"{lost} {edges.FLOAT_CONV[number]}")


@every_width
def test_depthwise_sums_beside_ties(isa: str) -> None:
    """What decides them is smaller than float64's last bit."""
    a, b = beside_ties(130, 19, 19, np.random.default_rng(4))
    want = np.array([exact(a[i : i + 1], b[:, i : i + 1])[0, 0] for i in range(19)], F)
    operation = made(isa, a[None], b.T[:, None].copy(), None, group=19)
    assert_bits(alone(operation, a[None]), want[None, :, None])


@every_width
@pytest.mark.parametrize("depth", [2, 4])
def test_sums_of_narrow_groups_beside_ties(isa: str, depth: int) -> None:
    """Groups whose reaches differ: each of a vector's has its own."""
    a, b = beside_ties(132, 14, depth * 14, np.random.default_rng(depth))
    a *= np.exp2(np.arange(14) % 3 * -9)[:, None].astype(F)
    want = np.concatenate([exact(a[g : g + 1], b[:, g * depth : (g + 1) * depth])[0] for g in range(14)])
    x = a.reshape(14, -1, depth).transpose(0, 2, 1).reshape(1, 14 * depth, -1)
    w = b.reshape(-1, depth, depth * 14).transpose(2, 1, 0)
    operation = made(isa, np.ascontiguousarray(x), np.ascontiguousarray(w), None, group=14)
    assert_bits(alone(operation, np.ascontiguousarray(x)), want[None, :, None])


@every_width
def test_grouped_sums_beside_ties(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group's reach follows from its own channels, whether the image is converted before or by the tiles."""
    a, b = beside_ties(130, 76, 9, np.random.default_rng(5))
    want = exact(a, b).T
    pixels = a.reshape(76, 2, 65).transpose(2, 0, 1).reshape(65, 152)
    w = b.reshape(2, 65, 9).transpose(2, 1, 0)
    for reuse in (0, 99):
        monkeypatch.setattr(float_conv, "_REUSE", reuse)
        for scale in (1, 2.0**-20):
            x = np.concatenate([pixels * F(scale), pixels])[None]
            operation = made(isa, x, np.concatenate([w, w]), None, group=2, strides=(2,))
            assert bool(operation.widen) == (reuse == 0)
            assert_bits(alone(operation, x), np.concatenate([want * F(scale), want])[None], f"{reuse} {scale}")


def test_what_is_declined() -> None:
    for x, w, why in (((1, 2, 3, 1, 3), (1, 2, 1, 2, 1), "larger than"), ((1, 0, 3), (2, 0, 1), "sums of nothing")):
        with pytest.raises(Declined, match=why):
            made("", np.zeros(x, F), np.zeros(w, F), None)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4, 4), (1, 3, 0, 4, 4), (2, 3, 4, 4, 0)])
def test_three_spatial_axes_without_elements(shape: tuple[int, ...]) -> None:
    x, w, bias = np.ones(shape, F), np.ones((4, 3, 2, 2, 2), F), np.arange(4, dtype=F)
    for constants in ((1, 2), (2,)):
        model, feeds = node_model("Conv", [x, w, bias], {"pads": (1,) * 6}, constants=constants)
        assert same_everywhere(model, feeds).events[0].backend == ("native" if constants == (1, 2) else "reference")


def test_volumes_of_several_shapes_in_one_session() -> None:
    rng = np.random.default_rng(9)
    w = rng.normal(size=(8, 6, 3, 3, 3)).astype(F)
    model, _ = node_model("Conv", [np.ones((1, 6, 4, 5, 6), F), w], {"pads": (1,) * 6}, constants=(1,))
    for axis in (0, 2, 3, 4):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    shapes = ((1, 6, 4, 5, 6), (2, 6, 1, 3, 9), (1, 6, 4, 5, 6), (1, 6, 4, 5, 6), (2, 6, 1, 3, 9))
    same_runs(
        model, ({"i0": rng.normal(size=shape).astype(F)} for shape in shapes), times=1, same=assert_bits, threads=2
    )


@pytest.mark.parametrize("number", range(len(edges.FLOAT_CONV)))
def test_nodes(number: int) -> None:
    rng = np.random.default_rng(3)
    for kind in ("normal", "special"):
        x, w, bias, geometry = case(kind, rng, number)
        for inputs in ([x, w, bias], [x, w]):
            model, feeds = node_model("Conv", inputs, geometry, constants=(1, 2))
            assert same_everywhere(model, feeds).events[0].backend == "native"


@thin_width(*range(len(edges.FLOAT_CONV)), other=4, name="number")
@pytest.mark.parametrize("kind", ["normal", "ties", "special"])
def test_weights_or_a_bias_of_the_run(isa: str, number: int, kind: str) -> None:
    x, w, bias, geometry = case(kind, np.random.default_rng(number), number)
    for inputs, constants in (([x, w, bias], ()), ([x, w], ()), ([x, w, bias], (2,)), ([x, w, bias], (1,))):
        model, feeds = node_model("Conv", inputs, geometry, constants=constants)
        session = same_runs(model, feeds, times=2, same=assert_bits, isa=isa, threads=1 + number % 2)
        assert session.execute(feeds).events[0].backend == "native"
