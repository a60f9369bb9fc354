"""Resize and Upsample: against fractions, against onnxruntime, sizes, policies, refusals."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle import resize as oracle

import qrun
from qrun.memory import Budget
from qrun.ops import Context, find

TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
LENGTHS = [(5, 10), (4, 3), (9, 3), (3, 7), (1, 4), (6, 1), (10, 9), (2, 2), (7, 5)]
f32 = np.float32


def call(x: np.ndarray, *args: Any, version: int = 19, op_type: str = "Resize", **attributes: Any) -> np.ndarray:
    attributes.setdefault("ctx", Context(version=version, budget=Budget(2**30)))
    return find("", op_type, version)(x, *args, **attributes)


def sizes(*values: int) -> dict[str, np.ndarray]:
    return {"sizes": np.array(values, np.int64)}


def scales(*values: float) -> dict[str, np.ndarray]:
    return {"scales": np.array(values, f32)}


def exact_row(
    x: np.ndarray, out: int, scale: Fraction, options: dict[str, Any], roi: tuple[Fraction, Fraction]
) -> list:
    values, length = x.tolist(), x.size
    transform = options["coordinate_transformation_mode"]
    row: list[Any] = []
    for i in range(out):
        at = oracle.place(i, length, out, scale, transform, roi)
        if transform == "tf_crop_and_resize" and not 0 <= at <= length - 1:
            row.append(options["extrapolation_value"])
        elif options["mode"] == "nearest":
            row.append(values[oracle.nearest(at, length, options["nearest_mode"])])
        else:
            a = Fraction(options["cubic_coeff_a"]) if options["mode"] == "cubic" else None
            w = oracle.weights(at, length, scale, a, bool(options["antialias"]), bool(options["exclude_outside"]))
            row.append(float(sum(Fraction(values[k]) * v for k, v in w.items())))
    return row


def every_option() -> list[dict[str, Any]]:
    found = []
    for transform in TRANSFORMS:
        common = {"coordinate_transformation_mode": transform, "extrapolation_value": -7.0}
        found += [{**common, "mode": "nearest", "nearest_mode": mode} for mode in NEAREST]
        for mode, antialias, exclude in product(("linear", "cubic"), (0, 1), (0, 1)):
            extra = {"antialias": antialias, "exclude_outside": exclude, "cubic_coeff_a": -0.5}
            found.append({**common, "mode": mode, **extra})
    return found


@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_one_axis_against_fractions(by: str) -> None:
    rng = np.random.default_rng(21)
    for (length, out), options in product(LENGTHS, every_option()):
        crop = options["coordinate_transformation_mode"] == "tf_crop_and_resize"
        if crop and by == "scales":
            continue
        x = np.round(rng.uniform(-100, 100, length), 2).astype(f32)
        roi = np.array([0.25, 1.25] if crop else [0, 1], f32)
        scale = Fraction(out, length)
        given = sizes(out)
        if by == "scales":
            given = scales((out + 0.25) / length)
            scale = Fraction(float(given["scales"][0]))
        got = call(x, roi if crop else None, **given, **options)
        want = exact_row(x, out, scale, options, (Fraction(float(roi[0])), Fraction(float(roi[1]))))
        message = f"seed 21: {x.tolist()} to {out} by {given}, {options}"
        assert got.shape == (out,), message
        if options["mode"] == "nearest":
            assert got.tolist() == want, message
        else:
            np.testing.assert_allclose(got, np.array(want, f32), 1e-6, 1e-6, err_msg=message)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_results_are_as_near_as_numerics_says(mode: str) -> None:
    """Half a unit in the last place, and the error of the float64 steps, F1 of numerics.md."""
    rng, a = np.random.default_rng(3), {"linear": None, "cubic": Fraction(-3, 4)}[mode]
    for _ in range(30):
        length, out = (int(n) for n in rng.integers(3, 50, 2))
        x = (rng.normal(0, 1, length) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
        inputs = [x, None, None, np.array([out])]
        (got,) = run_qrun(*node_model("Resize", inputs, {"mode": mode}, opset=19, constants=[3]))
        scale, greatest = Fraction(out, length), Fraction(float(abs(x).max()))
        for place, result in enumerate(got):
            at = oracle.place(place, length, out, scale, "half_pixel", (Fraction(0), Fraction(1)))
            real = sum(w * Fraction(float(x[n])) for n, w in oracle.weights(at, length, scale, a, False, False).items())
            half = Fraction(float(np.spacing(abs(result)))) / 2
            assert abs(Fraction(float(result)) - real) <= half + (length + 8) * greatest / 2**49


def test_nearest_of_every_type_and_axes() -> None:
    x = np.arange(24, dtype=np.int8).reshape(2, 3, 4)
    rows, columns = [0, 0, 1, 2, 2], [1, 3]
    for dtype in (np.uint8, np.float64, np.bool_, np.object_, np.complex64, ml_dtypes.bfloat16):
        typed = x.astype(str).astype(object) if dtype is np.object_ else x.astype(dtype)
        for source in (typed, np.asfortranarray(typed)):
            got = call(source, **sizes(2, 5), axes=(-1, 1), nearest_mode="round_prefer_ceil")
            assert got.dtype == typed.dtype
            np.testing.assert_array_equal(got, typed[:, rows][:, :, columns])


def test_scale_that_is_a_rounded_quotient_means_the_quotient() -> None:
    x = np.arange(9, dtype=f32)
    options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    assert call(x, **scales(1 / 3), **options).tolist() == [0, 3, 6]
    assert call(np.arange(10, dtype=f32), **scales(0.7)).shape == (7,)


def test_random_images_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(22)
    compared = 0
    for case in range(60):
        x = rng.standard_normal((1, 2, *rng.integers(2, 9, 2))).astype(f32)
        mode = ("nearest", "linear", "cubic")[case % 3]
        attributes = {
            "mode": mode,
            "coordinate_transformation_mode": ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")[
                case % 4
            ],
        }
        if mode == "nearest":
            attributes["nearest_mode"] = NEAREST[int(rng.integers(4))]
        elif mode == "cubic":
            attributes["exclude_outside"] = int(rng.integers(2))
        inputs: list[Any] = [x, None]
        if case % 2:
            inputs += [np.array([1, 1, *rng.choice([0.5, 0.75, 1.5, 2, 3], 2)], f32)]
        else:
            inputs += [None, np.array([1, 2, *rng.integers(2, 12, 2)], np.int64)]
        model, feeds = node_model("Resize", inputs, attributes, opset=13)
        want = run_ort(model, feeds)[0]
        got = run_qrun(model, feeds, arith="ort")[0]
        message = f"seed 22, case {case}: {x.shape} {inputs[2:]} {attributes}"
        assert got.shape == want.shape, message
        if mode == "nearest":
            assert_equal(got, want, message)
        else:
            np.testing.assert_allclose(got, want, 1e-4, 1e-5, err_msg=message)
        compared += 1
    assert compared == 60


def test_integers_round_to_even_and_saturate() -> None:
    x = np.array([10, 255], np.uint8)
    assert call(x, **scales(2), mode="linear").tolist() == [10, 71, 194, 255]
    assert call(x, **scales(2), mode="linear", ctx=Context(arith="ort", version=19)).tolist() == [10, 71, 193, 255]
    options = {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75}
    x = np.array([0, 255, 0, 0, 255, 255, 3, 0], np.uint8)
    wide = exact_row(
        x, 21, Fraction(21, 8), {**options, "antialias": 0, "exclude_outside": 0}, (Fraction(0), Fraction(1))
    )
    assert min(wide) < -1
    assert max(wide) > 256
    assert call(x, **sizes(21), **options).tolist() == [min(max(round(v), 0), 255) for v in wide]
    big = np.array([2**63 - 1, 0], np.int64)
    assert call(big, **sizes(4), mode="cubic", cubic_coeff_a=-1.0)[0] == 2**63 - 1


def test_policies_keep_the_aspect_ratio() -> None:
    x = np.zeros((2, 4, 6), f32)
    assert call(x, **sizes(7, 8), axes=(1, 2), keep_aspect_ratio_policy="not_larger").shape == (2, 5, 8)
    assert call(x, **sizes(7, 8), axes=(1, 2), keep_aspect_ratio_policy="not_smaller").shape == (2, 7, 11)
    assert call(x, **sizes(7, 8), axes=(2, 1), keep_aspect_ratio_policy="not_larger").shape == (2, 5, 7)


def test_crop_extrapolates_on_every_axis() -> None:
    x = np.arange(9, dtype=f32).reshape(3, 3)
    roi = np.array([-0.5, 0, 1, 1.5], f32)
    for mode in ("nearest", "linear"):
        got = call(
            x,
            roi,
            None,
            sizes(4, 4)["sizes"],
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=9.5,
        )
        np.testing.assert_array_equal(got == 9.5, np.add.outer([1, 0, 0, 0], [0, 0, 0, 1]) > 0)


def test_scales_count_within_the_roi() -> None:
    """The output's length is that of the roi times the scale, where scales are given and not sizes."""
    x, roi = np.arange(10, dtype=f32), np.array([0.1, 0.6], f32)
    for scale, length in ((1, 5), (2, 10), (0.5, 2)):
        mode = "tf_crop_and_resize"
        assert len(call(x, roi, np.array([scale], f32), coordinate_transformation_mode=mode)) == length


def test_older_versions() -> None:
    x = np.arange(4, dtype=f32)
    assert call(x, scales(1.5)["scales"], version=10).tolist() == [0, 0, 1, 2, 2, 3]
    assert call(x, scales(2)["scales"], version=10, mode="linear").tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]
    assert call(x, np.zeros(0, f32), np.zeros(0, f32), np.array([2]), version=11).tolist() == [0, 2]
    assert call(x, np.zeros(0, f32), scales(0.5)["scales"], version=11).tolist() == [0, 2]
    for version, inputs, attributes in ((7, [x], {"scales": [2.0]}), (9, [x, scales(2)["scales"]], {})):
        model, feeds = node_model("Upsample", inputs, attributes, opset=version)
        assert run_qrun(model, feeds)[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    model, feeds = node_model("Upsample", [x, scales(2)["scales"]], opset=13)
    with pytest.raises(qrun.OperatorError, match="ended with opset 9"):
        run_qrun(model, feeds)
    with pytest.raises(qrun.OperatorError, match="below 1"):
        call(x, op_type="Upsample", version=7, scales=(0.5,))


def test_zero_sizes() -> None:
    assert call(np.zeros((0, 4), f32), **scales(2, 2)).shape == (0, 8)
    assert call(np.zeros((2, 4), f32), **sizes(0, 3), mode="cubic").shape == (0, 3)
    assert call(np.zeros((), f32)).shape == ()
    with pytest.raises(qrun.OperatorError, match="no elements to resample"):
        call(np.zeros((0, 4), f32), **sizes(2, 4))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "either scales or sizes"),
        ({**sizes(2, 2), **scales(1, 1)}, "either scales or sizes"),
        (scales(1), "scales has shape"),
        (sizes(1, 2, 3), "sizes has 3"),
        (sizes(1, -2), "negative"),
        (scales(1, 0), "not positive"),
        (scales(1, np.nan), "not positive"),
        (scales(1, np.inf), "not positive"),
        (sizes(2**62, 2**62), "memory"),
        (sizes(2**40, 1), "memory"),
        (scales(1e30, 1), "memory"),
        ({**scales(1e38, 1), "mode": "cubic"}, "memory"),
        ({**sizes(2, 2), "mode": "area"}, "mode"),
        ({**sizes(2, 2), "nearest_mode": "round"}, "nearest_mode"),
        ({**sizes(2, 2), "coordinate_transformation_mode": "x"}, "coordinate_transformation_mode"),
        ({**sizes(2, 2), "keep_aspect_ratio_policy": "x"}, "keep_aspect_ratio_policy"),
        ({**sizes(2, 2), "axes": (0, -2)}, "named twice"),
        ({**sizes(2, 2), "coordinate_transformation_mode": "tf_crop_and_resize"}, "roi has 0"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        call(np.zeros((3, 4), f32), **given)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_hostile_roi_is_refused(value: float) -> None:
    roi = np.array([0, value])
    with pytest.raises(qrun.OperatorError, match="roi"):
        call(np.zeros(3, f32), roi, None, np.array([2]), coordinate_transformation_mode="tf_crop_and_resize")


def test_strong_antialias_of_a_long_axis() -> None:
    x = np.full(100_000, 3, f32)
    assert call(x, **sizes(3), mode="linear", antialias=1).tolist() == [3, 3, 3]
    with pytest.raises(qrun.OperatorError, match="no averages"):
        call(np.zeros(3, bool), **sizes(2), mode="linear")


def test_resize_10_has_two_modes() -> None:
    x = np.arange(4, dtype=f32).reshape(1, 4)
    for mode in ("nearest", "linear"):
        run_qrun(*node_model("Resize", [x, np.array([1, 2], f32)], {"mode": mode}, opset=10))
    with pytest.raises(qrun.OperatorError, match="mode"):
        run_qrun(*node_model("Resize", [x, np.array([1, 2], f32)], {"mode": "cubic"}, opset=10))
