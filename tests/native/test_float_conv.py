"""Native convolutions of float32, transposed ones too, have the reference's bits, whatever their sizes and places."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float_conv import assert_placed, filled
from helpers.native import ISAS, Array, engine
from helpers.placed import natively, same_everywhere, same_runs
from helpers.sums import SPECIAL, assert_bits
from helpers.support import node_model
from helpers.widths import every_width, thin_width

from qrun.native.errors import Declined
from qrun.native.kernels.float_conv import FloatConv
from qrun.native.kernels.float_conv_transpose import FloatConvTranspose
from qrun.ops._window import ConvGeometry
from qrun.ops.conv import _place, conv, conv_transpose

F = np.float32


def made(isa: str, x: Array, w: Array, bias: Array | None, threads: int = 1, **geometry: Any) -> FloatConv:
    return FloatConv(engine(isa, threads), x.shape, w, bias=bias, **geometry)


def run(operation: FloatConv, x: Array) -> Array:
    return np.asarray(operation.engine.run(operation, [x]))


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
@pytest.mark.parametrize(("channels", "results"), [(1024, 70), (512, 130)])
def test_pixels_a_large_power_of_two_apart(isa: str, channels: int, results: int) -> None:
    """Their taps would evict each other from the cache, so that tiles copy them first."""
    rng = np.random.default_rng(channels)
    x, w, bias = filled("normal", rng, (2, channels, 3, 4), (results, channels, 2, 2), results)
    geometry = {"pads": [1, 0, 0, 1], "dilations": [1, 2]}
    plan = partial(made, isa, x, w, bias, **geometry)
    (section,) = plan(1).sections((0, 0))
    assert "gathered" in section.spec.operands
    assert_placed(isa, plan, x, wanted(x, w, bias, geometry), True)


@every_width
def test_a_bias_that_is_nan_gives_the_one_nan(isa: str) -> None:
    rng = np.random.default_rng(8)
    bias = np.array([0xFFC00000, 0x7FC12345, 0x7F800001, 0x3F800000], "u4").view(F)
    x = rng.standard_normal((1, 4, 5, 5)).astype(F)
    for group in (1, 4):
        w = rng.standard_normal((4, 4 // group, 3, 3)).astype(F)
        want = wanted(x, w, bias, {"group": group})
        assert_bits(run(made(isa, x, w, bias, group=group), x), want, str(group))


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for number in (0, 4, 6, 8, 9, 11):
        x, w, bias, geometry = case(kind, rng, number)
        for given in (bias, None):
            got = run(made(isa, x, w, given, **geometry), x)
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
            assert_bits(run(made(isa, x, w, bias, pads=(1, 1, 1, 1)), x), want, f"{channels} {bias is None}")


@every_width
def test_relu_and_clip_are_made_with_the_sums(isa: str) -> None:
    """NaN stays, and Relu makes 0 of -0."""
    for number, kind in ((0, "normal"), (6, "special"), (8, "special"), (12, "normal"), (13, "special")):
        x, w, bias, geometry = case(kind, np.random.default_rng(5), number)
        plan, want = made(isa, x, w, bias, **geometry), wanted(x, w, bias, geometry)
        for low, high, zero in ((0.0, np.inf, 0.0), (-0.5, 0.75, -0.0)):
            limits = np.where(want < low, F(low), np.where(want > high, F(high), want)) + F(zero)
            assert_bits(run(plan.with_limits(low, high, zero), x), limits, f"{number} {low} {high}")


@every_width
def test_groups_of_narrow_channels_beyond_a_block(isa: str) -> None:
    """k of one and of several channels, around 256: they go another way there."""
    rng = np.random.default_rng(11)
    for depth, taps in ((1, 255), (1, 256), (1, 257), (2, 128), (2, 129), (4, 64), (4, 65), (4, 130)):
        x = rng.standard_normal((1, 8 * depth, taps + 5)).astype(F)
        w = rng.standard_normal((8 * depth, depth, taps)).astype(F)
        got = run(made(isa, x, w, None, 2, group=8), x)
        assert_bits(got, wanted(x, w, None, {"group": 8}), f"{depth} {taps}")


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
            natively(*node_model("Conv", inputs, geometry, constants=(1, 2)))


@thin_width(*range(len(edges.FLOAT_CONV)), other=4, name="number")
@pytest.mark.parametrize("kind", ["normal", "ties", "special"])
def test_weights_or_a_bias_of_the_run(isa: str, number: int, kind: str) -> None:
    x, w, bias, geometry = case(kind, np.random.default_rng(number), number)
    for inputs, constants in (([x, w, bias], ()), ([x, w], ()), ([x, w, bias], (2,)), ([x, w, bias], (1,))):
        model, feeds = node_model("Conv", inputs, geometry, constants=constants)
        session = same_runs(model, feeds, times=2, same=assert_bits, isa=isa, threads=1 + number % 2)
        assert session.execute(feeds).events[0].backend == "native"


CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 3, 5, 4), (3, 7, 3, 3), {}),
    ((2, 9, 6, 20), (9, 5, 2, 2), {"strides": (2, 2)}),
    ((2, 6, 5, 4), (6, 11, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 6, 5, 14), (6, 4, 3, 3), {"strides": (2, 3), "pads": (1, 0, 2, 1), "output_padding": (1, 2), "group": 2}),
    ((1, 4, 3, 3), (4, 1, 1, 1), {"strides": (3, 2), "output_padding": (2, 0), "group": 4}),
    ((1, 4, 3, 13), (4, 33, 2, 3), {"dilations": (2, 3), "pads": (2, 3, 0, 1)}),
    ((3, 8, 11), (8, 3, 5), {"strides": (2,), "output_padding": (1,), "dilations": (3,)}),
    ((1, 150, 7), (150, 9, 2), {"strides": (3,), "output_padding": (2,)}),
    ((1, 2, 3, 2), (2, 2, 3, 3), {"strides": (2, 2), "output_shape": (9, 8)}),
    ((1, 2, 5, 4), (2, 2, 3, 3), {"strides": (2, 1), "auto_pad": "SAME_UPPER"}),
    ((1, 2, 1, 4), (2, 2, 1, 3), {"pads": (0, 3, 0, 3)}),
)


def transposing(isa: str, x: Array, w: Array, bias: Array | None, threads: int = 1, **g: Any) -> FloatConvTranspose:
    more = [g.get(n, ()) for n in ("output_padding", "output_shape")]
    place = _place(x, w, bias, ConvGeometry(**{n: g[n] for n in g if not n.startswith("output_")}), *more)
    group = g.get("group", 1)
    return FloatConvTranspose(
        engine(isa, threads), x.shape, w, (x.shape[0], group * w.shape[1], *place.out), bias=bias,
        group=group, strides=place.strides, dilations=place.dilations, begin=place.begin,
    )  # fmt: skip


def transposed(x: Array, w: Array, bias: Array | None, geometry: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(conv_transpose(x, w, bias, **geometry))


def transposed_case(kind: str, rng: np.random.Generator, number: int) -> tuple[Array, Array, Array, dict[str, Any]]:
    x_shape, w_shape, geometry = CASES[number]
    x, w, bias = filled(kind, rng, x_shape, w_shape, w_shape[1] * geometry.get("group", 1))
    return x, np.nan_to_num(w, nan=2, posinf=3, neginf=-3), bias, geometry


@thin_width(*range(len(CASES)), name="number")
@pytest.mark.parametrize("at_end", [True, False])
def test_transposed_geometries(isa: str, number: int, at_end: bool) -> None:
    x, w, bias, geometry = transposed_case("normal", np.random.default_rng(number), number)
    for given in (bias, None):
        plan = partial(transposing, isa, x, w, given, **geometry)
        assert_placed(isa, plan, x, transposed(x, w, given, geometry), at_end)


@every_width
def test_relu_and_clip_are_made_with_transposed_sums(isa: str) -> None:
    """NaN stays, and Relu makes 0 of -0."""
    for number, kind in ((1, "normal"), (3, SPECIAL[0])):
        x, w, bias, geometry = transposed_case(kind, np.random.default_rng(5), number)
        plan, want = transposing(isa, x, w, bias, **geometry), transposed(x, w, bias, geometry)
        for low, high, zero in ((0.0, np.inf, 0.0), (-0.5, 0.75, -0.0)):
            limits = np.where(want < low, F(low), np.where(want > high, F(high), want)) + F(zero)
            assert_bits(engine(isa).run(plan.with_limits(low, high, zero), [x]), limits, f"{kind} {low} {high}")


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_transposed_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for number in (1, 2, 3, 6):
        x, w, bias, geometry = transposed_case(kind, rng, number)
        got = engine(isa).run(transposing(isa, x, w, bias, **geometry), [x])
        assert_bits(got, transposed(x, w, bias, geometry), f"{kind} {CASES[number]}")


VOLUMES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 3, 3, 2, 4), (3, 5, 2, 3, 2), {}),
    ((2, 4, 3, 2, 3), (4, 3, 3, 2, 3), {"strides": (2, 1, 3), "group": 2, "pads": (1, 0, 1, 0, 1, 0)}),
    ((1, 6, 2, 3, 2), (6, 1, 2, 2, 2), {"strides": (2, 2, 2), "output_padding": (1, 0, 1), "group": 6}),
    ((1, 2, 3, 2, 2), (2, 9, 1, 1, 1), {}),
    ((1, 2, 3, 2, 2), (2, 3, 1, 1, 1), {"strides": (3, 2, 1), "output_padding": (2, 0, 0)}),
    ((2, 3, 2, 2, 2), (3, 2, 2, 2, 2), {"dilations": (2, 1, 3), "output_padding": (1, 0, 2)}),
    ((1, 2, 2, 2, 2, 2), (2, 3, 2, 1, 2, 1), {"strides": (2, 1, 1, 1)}),
    ((0, 2, 3, 2, 2), (2, 3, 2, 2, 2), {}),
)


@pytest.mark.parametrize("number", range(len(VOLUMES)))
@pytest.mark.parametrize("isa", sorted({"generic", ISAS[0]}))
def test_three_transposed_axes(isa: str, number: int) -> None:
    rng = np.random.default_rng(number)
    x_shape, w_shape, geometry = VOLUMES[number]
    for kind in ("normal", "ties", "special") if x_shape[0] else ("normal",):
        x, w, bias = filled(kind, rng, x_shape, w_shape, w_shape[1] * geometry.get("group", 1))
        w = np.nan_to_num(w, nan=2, posinf=3, neginf=-3)
        for inputs in ([x, w, bias], [x, w]):
            model, feeds = node_model("ConvTranspose", inputs, geometry, constants=(1, 2))
            assert same_everywhere(model, feeds, isa=isa, threads=1 + number % 2).events[0].backend == (
                "native" if x_shape[0] else "reference"
            )


def test_what_is_declined_of_transposed_ones() -> None:
    for x, w, strides in (
        ((1, 2, 3), (2, 0, 1), ()),
        ((1, 2, 0), (2, 1, 1), ()),
        ((1, 2, 3, 3), (2, 1, 1, 1), (9, 9)),
    ):
        with pytest.raises(Declined):
            transposing("", np.zeros(x, F), np.zeros(w, F), None, strides=strides)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_transposed_nodes(number: int) -> None:
    rng = np.random.default_rng(3)
    for kind in ("normal", "special"):
        x, w, bias, geometry = transposed_case(kind, rng, number)
        for inputs in ([x, w, bias], [x, w]):
            natively(*node_model("ConvTranspose", inputs, geometry, constants=(1, 2)))
    w[0, 0] = np.inf
    model, feeds = node_model("ConvTranspose", [x, w], geometry, constants=(1,))
    assert same_everywhere(model, feeds).events[0].why == "a weight is not finite"
