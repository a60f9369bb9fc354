"""Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Identity, Concat, Split, Slice, Gather, Pad, Constant, Shape."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.support import assert_equal, node_model, run_ort, run_qrun

import qrun
from qrun.ir.types import DTYPES, NUMBERS
from qrun.memory import Budget
from qrun.ops import Context, find

I64 = np.int64
BIG = 2**62
TYPES = [
    np.float32,
    np.int8,
    np.bool_,
    np.object_,
    np.complex64,
    ml_dtypes.bfloat16,
    ml_dtypes.int4,
    ml_dtypes.float8_e4m3fn,
]


def call(op_type: str, *args: Any, version: int = 28, **attributes: Any) -> Any:
    definition = find("", op_type, version)
    if definition.takes_context:
        attributes.setdefault("ctx", Context(version=version, budget=Budget(2**30)))
    return definition(*args, **attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, I64)


def sample(dtype: Any, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    if dtype is np.object_:
        return np.array([f"s{i}" for i in range(count)], object).reshape(shape)
    return (np.arange(count, dtype=np.int8) % 7).astype(dtype).reshape(shape)


def refused(text: str, op_type: str, *args: Any, **attributes: Any) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        call(op_type, *args, **attributes)


MOVES: list[tuple[str, list[np.ndarray], dict[str, Any], tuple[int, ...]]] = [
    ("Reshape", [ints(0, -1)], {}, (2, 12)),
    ("Reshape", [ints(4, -1, 2)], {}, (4, 3, 2)),
    ("Flatten", [], {"axis": -1}, (6, 4)),
    ("Flatten", [], {"axis": 0}, (1, 24)),
    ("Flatten", [], {"axis": 3}, (24, 1)),
    ("Unsqueeze", [ints(-1, 0)], {}, (1, 2, 3, 4, 1)),
    ("Transpose", [], {}, (4, 3, 2)),
    ("Transpose", [], {"perm": (1, 2, 0)}, (3, 4, 2)),
    ("Identity", [], {}, (2, 3, 4)),
    ("Slice", [ints(-1, 1), ints(-BIG, BIG), ints(2, -2), ints(-2, 1)], {}, (2, 2, 2)),
    ("Slice", [ints(BIG), ints(-(2**63)), ints(0), ints(-(2**63))], {}, (1, 3, 4)),
    ("Gather", [np.array([[0, -1], [1, 1]])], {"axis": 1}, (2, 2, 2, 4)),
    ("Gather", [np.array(-2, np.int32)], {"axis": -1}, (2, 3)),
    ("Gather", [np.zeros((0, 2), I64)], {}, (0, 2, 3, 4)),
    ("Pad", [ints(1, 0, 2, 0, 2, -3)], {}, (3, 5, 3)),
    ("Pad", [ints(1, 2), None, ints(-1)], {"mode": "reflect"}, (2, 3, 7)),
    ("Pad", [ints(4, -1), None, ints(1)], {"mode": "wrap"}, (2, 6, 4)),
    ("Pad", [ints(-1, 2), None, ints(1)], {"mode": "edge"}, (2, 4, 4)),
]


@pytest.mark.parametrize("dtype", TYPES)
def test_elements_of_every_type_move_alike(dtype: Any) -> None:
    x = sample(dtype, 2, 3, 4)
    # zero and absent elements share code 0, so that padding is comparable
    places = np.arange(1, 25).reshape(2, 3, 4)
    for op_type, inputs, attributes, shape in MOVES:
        order = call(op_type, places, *inputs, **attributes)
        for source in (x, np.asfortranarray(x), x[::-1][::-1]):
            got = call(op_type, source, *inputs, **attributes)
            blank = np.array([""], object) if dtype is np.object_ else np.zeros(1, dtype)
            want = np.concatenate([blank, x.reshape(-1)])[order.reshape(-1)].reshape(order.shape)
            assert got.shape == shape, op_type
            assert_equal(got, want, op_type) if dtype is not np.object_ else np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", TYPES)
def test_concat_undoes_split(dtype: Any) -> None:
    x = sample(dtype, 5, 3)
    parts = call("Split", x, ints(0, 1, 4), ctx=Context(outputs=3))
    assert [p.shape for p in parts] == [(0, 3), (1, 3), (4, 3)]
    assert all(np.shares_memory(p, x) for p in parts[1:])
    np.testing.assert_array_equal(call("Concat", *parts, axis=-2), x)


def test_views_share_memory() -> None:
    x = np.zeros((2, 1, 3), np.float32)
    x.flags.writeable = False
    for got in (
        call("Reshape", x, ints(3, 2)),
        call("Flatten", x),
        call("Squeeze", x),
        call("Unsqueeze", x, ints(0)),
        call("Transpose", x),
        call("Identity", x),
        call("Slice", x, ints(0), ints(1)),
        *call("Split", x, None, axis=2, num_outputs=2, ctx=Context(outputs=2)),
    ):
        assert np.shares_memory(got, x)


def test_random_slices_and_pads_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(11)
    compared = 0
    for case in range(40):
        shape = tuple(rng.integers(1, 6, 3))
        x = rng.standard_normal(shape).astype(np.float32)
        axes = rng.permutation(3)[: rng.integers(1, 4)]
        steps = rng.choice([-3, -1, 1, 2], len(axes))
        starts, ends = rng.integers(-8, 8, (2, len(axes)))
        mode = ("constant", "reflect", "edge", "wrap")[case % 4]
        low = [-2, 0, -1, 0][case % 4]
        pads = np.concatenate([np.minimum(rng.integers(low, 3, len(axes)), np.array(shape)[axes] - 1) for _ in "be"])
        if mode == "edge":
            pads[: len(axes)] = np.maximum(
                pads[: len(axes)], 1 - np.array(shape)[axes] + np.maximum(0, -pads[len(axes) :])
            )
        for op_type, inputs, attributes in (
            ("Slice", [x, starts, ends, axes, steps], {}),
            ("Pad", [x, pads, np.float32(2.5) if mode == "constant" else None, axes], {"mode": mode}),
        ):
            model, feeds = node_model(op_type, inputs, attributes, opset=21)
            message = f"seed 11, case {case}: {op_type} {shape} {inputs[1:]} {attributes}"
            try:
                want = run_ort(model, feeds)[0]
            except Exception as error:
                print(f"onnxruntime refuses {message}: {error}")
                continue
            assert_equal(run_qrun(model, feeds)[0], want, message)
            compared += 1
    assert compared >= 70


def test_pad_repeats_past_the_tensor_and_cuts_first() -> None:
    x = np.array([1, 2, 3], np.int8)
    assert call("Pad", x, ints(5, 5), mode="reflect").tolist() == np.pad(x, 5, "reflect").tolist()
    assert call("Pad", x, ints(4, 7), mode="wrap").tolist() == np.pad(x, (4, 7), "wrap").tolist()
    assert call("Pad", x, ints(-1, 2), mode="reflect").tolist() == [2, 3, 2, 3]
    assert call("Pad", x, ints(-5, 4)).tolist() == [0, 0]
    assert call("Pad", x[:1], ints(1, 1), mode="reflect").tolist() == [1, 1, 1]
    assert call("Pad", np.float32([1]), version=2, pads=(1, 0), value=0.5).tolist() == [0.5, 1]


def test_backward_slice_is_clamped_as_the_text_says() -> None:
    x = np.arange(2)
    assert call("Slice", x, ints(-8), ints(-5), None, ints(-1)).tolist() == [0]
    assert call("Slice", x, ints(9), ints(-9), None, ints(-1)).tolist() == [1, 0]
    assert call("Slice", x[:0], ints(-8), ints(-5), None, ints(-1)).tolist() == []


def test_reshape_zero_and_minus_one() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert call("Reshape", empty, ints(3, -1)).shape == (3, 0)
    assert call("Reshape", empty, ints(0, 5), allowzero=1).shape == (0, 5)
    assert call("Reshape", np.float32(3).reshape(()), ints(1, -1)).shape == (1, 1)
    assert call("Reshape", np.zeros((1,), np.float32), np.zeros(0, I64)).shape == ()
    refused("does not reshape", "Reshape", empty, ints(0, -1))
    refused("does not reshape", "Reshape", empty, ints(-1, -1))
    refused("does not reshape", "Reshape", empty, ints(0, -1), allowzero=1)
    refused("does not reshape", "Reshape", empty, ints(0, 0, 0))
    refused("does not reshape", "Reshape", np.zeros(6), ints(4, -1))
    refused("does not reshape", "Reshape", np.zeros(6), ints(BIG, BIG))
    refused("does not reshape", "Reshape", np.zeros(6), ints(-2, -3))
    refused("2\\^63", "Reshape", empty, ints(0, BIG, BIG))
    refused("at most 64", "Reshape", np.zeros(1), np.ones(65, I64))
    refused("list of integers", "Reshape", empty, np.zeros((1, 2), I64))


def test_axes_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 1, 3), np.float32)
    assert call("Squeeze", x, ints()).shape == (2, 1, 3)
    assert call("Squeeze", x, version=1).shape == (2, 3)
    assert call("Unsqueeze", x, version=1, axes=(0,)).shape == (1, 2, 1, 3)
    refused("axis 0 has 2 elements", "Squeeze", x, ints(0))
    refused("named twice", "Squeeze", x, ints(1, -2))
    refused("axes 5 does not exist", "Unsqueeze", x, ints(0, 5))
    refused("at most 64", "Unsqueeze", x, np.arange(62))
    refused("perm", "Transpose", x, perm=(0, 1, 1))
    refused("perm", "Transpose", x, perm=(0, 1))
    refused("axis 4", "Flatten", x, axis=4)
    refused("axis 3", "Concat", x, axis=3)
    refused("axis 0", "Concat", np.zeros(()), axis=0)
    refused("does not fit", "Concat", x, np.zeros((2, 2, 2), np.float32), axis=1)
    refused("does not fit", "Concat", x, x.astype(np.int8), axis=1)
    refused("missing", "Concat", axis=0)
    refused("step is 0", "Slice", x, ints(0), ints(1), None, ints(0))
    refused("ends has 2", "Slice", x, ints(0), ints(1, 1))
    refused("starts has 4", "Slice", x, ints(0, 0, 0, 0), ints(1, 1, 1, 1))
    refused("named twice", "Slice", x, ints(0, 0), ints(1, 1), ints(0, -3))
    refused("a scalar", "Gather", np.zeros(()), ints(0))


def test_gather_names_the_index() -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(qrun.OperatorError, match=r"index -4 at \[1, 0\] is out of range") as caught:
        call("Gather", x, np.array([[0], [-4]]))
    assert ("expected", "-3 to 2, as axis 0 of data [3,4]") in caught.value.facts
    refused("index 9223372036854775807 is out of range", "Gather", x, np.array(2**63 - 1), axis=1)
    refused("out of range", "Gather", np.zeros((0, 2)), ints(0))
    model, feeds = node_model("Gather", [x, ints(3)])
    with pytest.raises(qrun.OperatorError, match="index 3") as caught:
        run_qrun(model, feeds)
    assert "tensor i1 (input 1, indices)" in caught.value.where


def test_split_forms() -> None:
    x = np.arange(7)
    three = {"ctx": Context(outputs=3)}
    assert [p.tolist() for p in call("Split", x, num_outputs=3, **three)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [p.size for p in call("Split", x[:6], version=13, ctx=Context(outputs=3, version=13))] == [2, 2, 2]
    assert [p.size for p in call("Split", x, version=2, split=(3, 4), ctx=Context(outputs=2))] == [3, 4]
    refused("add up to 7|do not fit", "Split", x, ints(3, 3), ctx=Context(outputs=2))
    refused("do not fit", "Split", x, ints(8, -1), ctx=Context(outputs=2))
    refused("names 3 outputs", "Split", x, ints(3, 4), **three)
    refused("names 3 outputs", "Split", x, num_outputs=2, **three)
    refused("either split or num_outputs", "Split", x, **three)
    refused("either split or num_outputs", "Split", x, ints(7), num_outputs=1)
    refused("do not fill", "Split", np.arange(5), num_outputs=4, ctx=Context(outputs=4))
    refused("equal parts", "Split", x, version=13, ctx=Context(outputs=3, version=13))


def test_pads_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 3), np.float32)
    refused("remove more", "Pad", x, ints(0, -4, 0, 0))
    refused("pads has 3", "Pad", x, ints(0, 0, 0))
    refused("mode", "Pad", x, ints(0, 0, 0, 0), mode="symmetric")
    refused("mode", "Pad", x, ints(0, 0, 0, 0), mode="wrap", version=18)
    refused("nothing to edge", "Pad", x[:0], ints(1, 0, 0, 0), mode="edge")
    refused("nothing to wrap", "Pad", x, ints(0, -4, 0, 4), mode="wrap")
    refused("constant_value", "Pad", x, ints(0, 0, 0, 0), np.zeros(2, np.float32))
    assert call("Pad", x[:0], ints(0, 1, 0, 0)).shape == (0, 4)


def test_huge_outputs_are_refused_before_they_are_made() -> None:
    x = np.zeros((2, 3), np.float32)
    budget = {"ctx": Context(budget=Budget(10**6))}
    refused("memory", "Pad", x, ints(10**6, 0, 0, 0), **budget)
    refused("memory", "Pad", x, ints(BIG, 0, 0, 0), **budget)
    refused("memory", "Pad", x, ints(2**58, 0, 0, -3), mode="edge", **budget)
    refused("more memory", "Pad", x, ints(BIG, 0, 0, -3), mode="edge", **budget)
    refused("memory", "Pad", np.zeros((2, 0)), ints(2**58, 0, 0, 0), mode="edge", **budget)
    refused("memory", "Gather", x, np.zeros((1000, 1000), I64), **budget)
    refused("memory", "Concat", *[np.zeros(1000)] * 1000, axis=0, **budget)
    refused("memory", "ConstantOfShape", ints(10**6), **budget)
    refused("memory", "ConstantOfShape", ints(BIG, BIG, BIG), **budget)
    refused("more memory", "ConstantOfShape", ints(0, BIG, BIG), **budget)
    refused("negative", "ConstantOfShape", ints(3, -1))
    model, feeds = node_model("ConstantOfShape", [ints(2**40, 2**40)])
    with pytest.raises(qrun.MemoryLimitError):
        run_qrun(model, feeds)


def test_constant_of_shape() -> None:
    assert_equal(call("ConstantOfShape", ints(2, 0)), np.zeros((2, 0), np.float32))
    assert_equal(call("ConstantOfShape", ints(), value=np.array([7], np.int8)), np.array(7, np.int8))
    for number, dtype in DTYPES.items():
        value = np.array(["x"], object) if number == 8 else np.ones(1, np.int8).astype(dtype)
        got = call("ConstantOfShape", ints(2), value=value)
        assert got.dtype == dtype
        assert got.tolist() == value.tolist() * 2
    refused("2 elements", "ConstantOfShape", ints(2), value=np.zeros(2))


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({"value_float": 0.1}, np.array(0.1, np.float32)),
        ({"value_floats": [0.5, 2.0]}, np.array([0.5, 2], np.float32)),
        ({"value_int": -(2**63)}, np.array(-(2**63))),
        ({"value_ints": [1, 2]}, np.array([1, 2])),
        ({"value_string": "é"}, np.array("é", object)),
        ({"value_strings": ["a", ""]}, np.array(["a", ""], object)),
    ],
)
def test_constant(attributes: dict[str, Any], want: np.ndarray) -> None:
    model, _ = node_model("Constant", [], attributes, outputs=[NUMBERS[want.dtype]], opset=13)
    (got,) = run_qrun(model, {})
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tolist() == want.tolist()


def test_constant_needs_exactly_one_value() -> None:
    refused("0 values", "Constant")
    refused("2 values", "Constant", value_int=1, value_float=1.0)
    x = np.arange(3, dtype=ml_dtypes.bfloat16)
    assert call("Constant", value=x) is x
    assert call("Constant", version=9, value=x) is x


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (1, None), (-2, -1), (-9, 9), (2, 1), (3, None), (-(2**63), 2**63 - 1)]
)
def test_shape(start: int, end: int | None) -> None:
    x = np.zeros((2, 0, 5), np.int8)
    attributes = {"start": start, **({} if end is None else {"end": end})}
    model, feeds = node_model("Shape", [x], attributes, outputs=[I64], opset=15)
    assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0])
