"""Native transposed convolutions of float32 equal the reference's, bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.float_conv import assert_placed, filled
from helpers.native import ISAS, Array, engine
from helpers.placed import same_everywhere
from helpers.sums import SPECIAL, assert_bits
from helpers.support import node_model
from helpers.widths import every_width, thin_width

from qrun.native.errors import Declined
from qrun.native.kernels.float_conv_transpose import FloatConvTranspose
from qrun.ops._window import ConvGeometry
from qrun.ops.conv import _placed, conv_transpose

F = np.float32
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


def planned(isa: str, x: Array, w: Array, bias: Array | None, threads: int = 1, **g: Any) -> FloatConvTranspose:
    more = [g.get(n, ()) for n in ("output_padding", "output_shape")]
    place = _placed(x, w, bias, ConvGeometry(**{n: g[n] for n in g if not n.startswith("output_")}), *more)
    group = g.get("group", 1)
    return FloatConvTranspose(
        engine(isa, threads), x.shape, w, (x.shape[0], group * w.shape[1], *place.out), bias=bias,
        group=group, strides=place.strides, dilations=place.dilations, begin=place.begin,
    )  # fmt: skip


def wanted(x: Array, w: Array, bias: Array | None, geometry: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(conv_transpose(x, w, bias, **geometry))


def case(kind: str, rng: np.random.Generator, number: int) -> tuple[Array, Array, Array, dict[str, Any]]:
    x_shape, w_shape, geometry = CASES[number]
    x, w, bias = filled(kind, rng, x_shape, w_shape, w_shape[1] * geometry.get("group", 1))
    return x, np.nan_to_num(w, nan=2, posinf=3, neginf=-3), bias, geometry


@thin_width(*range(len(CASES)), name="number")
@pytest.mark.parametrize("at_end", [True, False])
def test_geometries(isa: str, number: int, at_end: bool) -> None:
    x, w, bias, geometry = case("normal", np.random.default_rng(number), number)
    for given in (bias, None):
        plan = partial(planned, isa, x, w, given, **geometry)
        assert_placed(isa, plan, x, wanted(x, w, given, geometry), at_end)


@every_width
def test_relu_and_clip_are_made_with_the_sums(isa: str) -> None:
    """NaN stays, and Relu makes 0 of -0."""
    for number, kind in ((1, "normal"), (3, SPECIAL[0])):
        x, w, bias, geometry = case(kind, np.random.default_rng(5), number)
        plan, want = planned(isa, x, w, bias, **geometry), wanted(x, w, bias, geometry)
        for low, high, zero in ((0.0, np.inf, 0.0), (-0.5, 0.75, -0.0)):
            limits = np.where(want < low, F(low), np.where(want > high, F(high), want)) + F(zero)
            assert_bits(engine(isa).run(plan.limited(low, high, zero), [x]), limits, f"{kind} {low} {high}")


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for number in (1, 2, 3, 6):
        x, w, bias, geometry = case(kind, rng, number)
        got = engine(isa).run(planned(isa, x, w, bias, **geometry), [x])
        assert_bits(got, wanted(x, w, bias, geometry), f"{kind} {CASES[number]}")


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
def test_three_spatial_axes(isa: str, number: int) -> None:
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


def test_what_is_declined() -> None:
    for x, w, strides in (
        ((1, 2, 3), (2, 0, 1), ()),
        ((1, 2, 0), (2, 1, 1), ()),
        ((1, 2, 3, 3), (2, 1, 1, 1), (9, 9)),
    ):
        with pytest.raises(Declined):
            planned("", np.zeros(x, F), np.zeros(w, F), None, strides=strides)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_nodes(number: int) -> None:
    rng = np.random.default_rng(3)
    for kind in ("normal", "special"):
        x, w, bias, geometry = case(kind, rng, number)
        for inputs in ([x, w, bias], [x, w]):
            model, feeds = node_model("ConvTranspose", inputs, geometry, constants=(1, 2))
            assert same_everywhere(model, feeds).events[0].backend == "native"
    w[0, 0] = np.inf
    model, feeds = node_model("ConvTranspose", [x, w], geometry, constants=(1,))
    assert same_everywhere(model, feeds).events[0].why == "a weight is not finite"
