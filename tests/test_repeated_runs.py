"""A session gives the same arrays in every run: the later ones are native programs, the first goes node by node."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS
from onnx import helper, numpy_helper

import qrun

Array = np.ndarray[Any, Any]
MS = "com.microsoft"
U8, I8 = np.uint8, np.int8
ONE, ZERO = np.float32(1), np.uint8(0)
NUMBERS = {"s": ONE, "z": ZERO}
RUNS = 4

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> onnx.ModelProto:
    return make_model(nodes, feeds, {name: typed(dtype) for name, dtype in outputs.items()}, constants, opset=17)


def same_in_every_run(
    nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array], outputs: Mapping[str, Any],
    constants: Mapping[str, Any] = NUMBERS, **options: Any,
) -> dict[str, Array]:  # fmt: skip
    """The outputs, after RUNS runs on native kernels, each compared with the reference kernels on the same graph."""
    made = model(nodes, feeds, outputs, constants)
    wanted = qrun.Session(made, backend="reference", fuse=options.get("fuse", True)).run(feeds)
    session = qrun.Session(made, backend="native", threads=1, **options)
    for number in range(RUNS):
        found = session.run(feeds)
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype, (name, number)
            assert found[name].shape == array.shape, (name, number)
            assert np.array_equal(found[name], array), (name, number)
    return wanted


def pair(kind: str) -> onnx.NodeProto:
    return helper.make_node(f"QLinear{kind}", ["a", "s", "z", "b", "s", "z", "s", "z"], ["y"], domain=MS)


SHAPES = [
    (),
    (1,),
    (3,),
    (2, 1),
    (2, 3),
    (1, 3),
    (1, 2, 3),
    (2, 2, 1),
    (2, 2, 3),
    (1, 2, 1, 3),
    (2, 2, 3, 1),
    (2, 2, 1, 1),
]


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(reversed(a), reversed(b), strict=False))


PAIRS = [pair for pair in itertools.product(SHAPES, SHAPES) if broadcast(*pair)]


@pytest.mark.parametrize("kind", ["Add", "Mul"])
@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_two_operands_of_any_shapes(kind: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(a) * 100 + len(b))
    feeds = {"a": rng.integers(0, 9, a).astype(U8), "b": rng.integers(0, 9, b).astype(U8)}
    y = same_in_every_run([pair(kind)], feeds, {"y": U8})["y"]
    exact = np.add if kind == "Add" else np.multiply
    assert np.array_equal(y, exact(*(x.astype(np.int64) for x in feeds.values())))


@pytest.mark.parametrize("rows", [1, 5, 33, 200])
def test_a_product_of_constants(rows: int) -> None:
    rng = np.random.default_rng(rows)
    constants = {"a": rng.integers(0, 99, (rows, 2)).astype(U8), "b": rng.integers(-99, 99, (2, 1)).astype(I8)}
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    quantize = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    feeds = {"x": np.ones(64, np.float32)}
    outputs = {"y": np.int32, "q": U8}
    y = same_in_every_run([node, quantize], feeds, outputs, {**NUMBERS, **constants}, fuse=False)["y"]
    assert np.array_equal(y, constants["a"].astype(int) @ constants["b"].astype(int))


def test_a_node_whose_result_nobody_reads() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Abs", ["x"], ["unread"]),
        helper.make_node("QLinearAdd", ["q", "s", "z", "q", "s", "z", "s", "z"], ["y"], domain=MS),
    ]
    y = same_in_every_run(nodes, {"x": np.array([1, 2], np.float32)}, {"y": U8})["y"]
    assert y.tolist() == [2, 4]


def test_a_result_without_axes() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0),
    ]
    y = same_in_every_run(nodes, {"x": np.array([1, 1], np.float32)}, {"q": U8, "y": np.float32})["y"]
    assert y.shape == ()


@pytest.mark.parametrize("kernel", [(3,), (1, 3), (3, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [U8, I8])
def test_a_convolution_of_channels_last_with_padding(kernel: tuple[int, ...], channels: int, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    feeds = {"x": rng.integers(0, 5, (1, *[5] * len(kernel), channels)).astype(dtype)}
    pads = [k // 2 for k in kernel]
    node = helper.make_node(
        "QLinearConv",
        ["x", "s", "zero", "w", "s", "zero", "s", "zero"],
        ["y"],
        domain=MS,
        channels_last=1,
        pads=[*pads, *pads],
    )
    weights = rng.integers(0, 3, (6, channels, *kernel)).astype(dtype)
    constants = {"s": np.float32(1), "zero": dtype(0), "w": weights}
    y = same_in_every_run([node], feeds, {"y": dtype}, constants)["y"]
    inner = (0, *[2] * len(kernel), 0)
    part = feeds["x"][(0, *[slice(2 - k // 2, 3 + k // 2) for k in kernel])].astype(int)
    exact = int((np.moveaxis(part, -1, 0) * weights[0].astype(int)).sum())
    assert y[inner] == min(exact, np.iinfo(dtype).max)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pad_with_a_number_that_it_does_not_read(mode: str) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        helper.make_node("Pad", ["f", "pads", "v"], ["g"], mode=mode),
        helper.make_node("QuantizeLinear", ["g", "s", "z"], ["y"]),
    ]
    constants = {**NUMBERS, "pads": np.array([1, 1], np.int64), "v": np.float32(0)}
    y = same_in_every_run(nodes, {"x": np.array([1, 2], U8)}, {"y": U8}, constants)["y"]
    assert y.tolist() == ([1, 1, 2, 2] if mode == "edge" else [2, 1, 2, 1])


@pytest.mark.parametrize("shape", [(2, 0, 3, 3), (0, 3, 3), (0, 1)], ids=str)
def test_a_constant_without_elements_along_an_axis(shape: tuple[int, ...]) -> None:
    b = np.zeros([0] + [1] * (len(shape) - 1 - shape.index(0)), U8)
    same_in_every_run([pair("Mul")], {"a": np.zeros(shape, U8)}, {"y": U8}, {**NUMBERS, "b": b})


def test_a_convolution_without_channels() -> None:
    node = helper.make_node("ConvInteger", ["x", "w", "", "wz"], ["y"])
    constants = {"w": np.zeros((2, 0, 3), U8), "wz": np.array([1, 2], U8)}
    y = same_in_every_run([node], {"x": np.zeros((1, 0, 4), U8)}, {"y": np.int32}, constants)["y"]
    assert y.tolist() == [[[0, 0], [0, 0]]]


def test_a_product_with_no_matrices() -> None:
    node = helper.make_node("MatMulIntegerToFloat", ["a", "b", "as", "bs"], ["y"], domain=MS)
    constants = {"b": np.zeros((0, 3, 4), U8), "as": ONE, "bs": np.ones((0, 1, 4), np.float32)}
    y = same_in_every_run([node], {"a": np.ones((2, 3), U8)}, {"y": np.float32}, constants)["y"]
    assert y.shape == (0, 2, 4)


@pytest.mark.parametrize("fed", [True, False])
def test_a_quantized_product_with_no_matrices(fed: bool) -> None:
    node = helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "bs", "bz", "s", "z"], ["y"])
    b = {"b": np.zeros((0, 1, 3, 4), I8)}
    constants = {**NUMBERS, "bs": np.ones((0, 1, 1, 4), np.float32), "bz": I8(0)}
    feeds = {"a": np.ones((2, 3), U8)}
    feeds, constants = ({**feeds, **b}, constants) if fed else (feeds, {**constants, **b})
    assert same_in_every_run([node], feeds, {"y": U8}, constants)["y"].shape == (0, 1, 2, 4)


def test_extreme_scales_warn_nobody() -> None:
    node = helper.make_node("QLinearGlobalAveragePool", ["x", "xs", "zero", "ys", "zero"], ["y"], domain=MS)
    constants = {"xs": np.float32(1e30), "ys": np.float32(1e-30), "zero": I8(0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = same_in_every_run([node], {"x": np.array([[[1, -2, 3]]], I8)}, {"y": I8}, constants)["y"]
    assert y.tolist() == [[[127]]]


PASSED_ON = {
    "an input": ([], "x"),
    "Identity": ([helper.make_node("Identity", ["x"], ["y"])], "y"),
    "Reshape": ([helper.make_node("Reshape", ["x", "shape"], ["y"])], "y"),
    "a constant": ([helper.make_node("Identity", ["c"], ["y"])], "y"),
    "Flatten": ([helper.make_node("Flatten", ["x"], ["y"])], "y"),
    "Shape": ([helper.make_node("Shape", ["q"], ["y"])], "y"),
}


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", PASSED_ON)
def test_results_are_the_callers_own(name: str, backend: str) -> None:
    nodes, output = PASSED_ON[name]
    quantize = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    constants = {**NUMBERS, "shape": np.array([2, 1], np.int64), "c": np.ones(2, np.float32)}
    feeds = {"x": np.ones(2, np.float32)}
    dtype = np.int64 if name == "Shape" else np.float32
    session = qrun.Session(model([quantize, *nodes], feeds, {"q": U8, output: dtype}, constants), backend=backend)
    wanted = None
    for _ in range(RUNS):
        found = session.run(feeds)
        wanted = found[output].copy() if wanted is None else wanted
        assert np.array_equal(found[output], wanted)
        assert found["q"].tolist() == [1, 1]
        for array in found.values():
            array[...] = 7
        assert feeds["x"].tolist() == [1, 1]


def test_two_outputs_share_no_memory() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Flatten", ["y"], ["f"])]
    feeds = {"x": np.ones(2, np.float32)}
    session = qrun.Session(model(nodes, feeds, {"y": np.float32, "f": np.float32}, {}))
    for _ in range(RUNS):
        found = session.run(feeds)
        found["y"][...] = 9
        assert found["f"].tolist() == [[-1], [-1]]


def repeated() -> tuple[qrun.Session, dict[str, Array]]:
    """A session that has run its program on these feeds, of which both inputs have the same symbol as an axis."""
    node = helper.make_node("Add", ["a", "b"], ["y"])
    feeds = {name: np.arange(6, dtype=np.float32).reshape(2, 3) for name in "ab"}
    made = model([node], feeds, {"y": np.float32}, {})
    for value in made.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    session = qrun.Session(made, backend="native", threads=1)
    for _ in range(RUNS):
        session.run(feeds)
    return session, feeds


ONES = np.ones((2, 3), np.float32)
UNFIT = {
    "another type": ({"a": ONES, "b": ONES.astype(np.float64)}, "QR003"),
    "another size": ({"a": ONES, "b": np.ones((2, 4), np.float32)}, "QR003"),
    "another rank": ({"a": ONES, "b": ONES[0]}, "QR003"),
    "another size of a symbol": ({"a": ONES, "b": np.ones((1, 3), np.float32)}, "QR003"),
    "one missing": ({"a": ONES}, "QR001"),
    "another name": ({"a": ONES, "c": ONES}, "QR002"),
    "one more": ({"a": ONES, "b": ONES, "c": ONES}, "QR002"),
}


@pytest.mark.parametrize(("feeds", "code"), UNFIT.values(), ids=UNFIT)
def test_feeds_are_checked_after_many_runs_as_before_the_first(feeds: dict[str, Array], code: str) -> None:
    session, fitting = repeated()
    with pytest.raises(qrun.QrunError) as failed:
        session.run(feeds)
    assert failed.value.code == code
    np.testing.assert_array_equal(session.run(fitting)["y"], 2 * fitting["a"])


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("strange", [None, 1, b"b", ["b"]])
def test_elements_that_are_no_texts_are_refused_after_many_runs_as_before_the_first(strange: Any, backend: str) -> None:
    def texts(*elements: Any) -> Array:
        made = np.empty(len(elements), object)
        made[:] = elements
        return made

    x = np.arange(2, dtype=np.float32)
    nodes = [helper.make_node("Identity", ["t"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    made = model(nodes, {"t": texts("a", "b"), "x": x}, {"y": object, "z": np.float32}, {})
    session, feeds = qrun.Session(made, backend=backend), {"t": texts("a", np.str_("b")), "x": x}
    for _ in range(RUNS):
        with pytest.raises(qrun.CallError) as caught:
            session.run({"t": texts("a", strange), "x": x})
        assert caught.value.code == "QR003"
        assert f"objects [2] with {strange!r}" in str(caught.value)
        assert session.run(feeds)["y"].tolist() == ["a", "b"]


def test_later_feeds_need_not_be_like_those_before() -> None:
    """Other sizes, in turn; lists; strides; one array twice; the same names in another order."""
    session, feeds = repeated()
    wide = {name: np.ones((5, 3), np.float32) for name in "ab"}
    listed: dict[str, Any] = {name: array.tolist() for name, array in feeds.items()}
    given = [
        wide,
        feeds,
        wide,
        wide,
        feeds,
        {name: array[::-1] for name, array in feeds.items()},
        {"b": ONES, "a": ONES},
    ]
    for these in given:
        made = session.run(these)
        np.testing.assert_array_equal(made["y"], these["a"] + these["b"])
        made["y"][...] = -1
    with pytest.raises(qrun.QrunError) as failed:
        session.run(listed)
    assert failed.value.code == "QR003"


def test_a_program_that_fails_is_no_longer_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is made step by step, as it would be the first time."""
    from qrun.native.errors import Undecided
    from qrun.native.plan.program import Direct, Program

    session, feeds = repeated()
    calls = []

    def fails(self: Program, *given: Any, **more: Any) -> None:
        calls.append(given)
        raise Undecided

    monkeypatch.setattr(Program, "run", fails)
    monkeypatch.setattr(Direct, "run", lambda self, *arrays: None)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(feeds)["y"], 2 * feeds["a"])
    assert len(calls) == 3
    monkeypatch.undo()
    np.testing.assert_array_equal(session.run(feeds)["y"], 2 * feeds["a"])


def test_an_output_that_is_asked_for_is_not_that_of_the_run_before() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    feeds = {"x": -ONES}
    session = qrun.Session(model(nodes, feeds, {"y": np.float32}, {}), backend="native", threads=1)
    for outputs in (None, "m", None, ["m", "y"], None, None, ["y"], None):
        made = session.run(feeds, outputs)
        assert list(made) == (["y"] if outputs is None else [outputs] if isinstance(outputs, str) else outputs)
        assert all((array == ONES).all() for array in made.values())


def test_nodes_of_which_none_is_native_run_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third run and later ones are no longer planned or bound:
    texts, a sequence, and an output that is a constant."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([5], np.int64))),
        helper.make_node("StringNormalizer", ["t"], ["u"], case_change_action="UPPER"),
        helper.make_node("SequenceConstruct", ["u", "t"], ["s"]),
        helper.make_node("SequenceAt", ["s", "c0"], ["y"]),
    ]
    feeds = {"t": np.array(["a", "b"], object)}
    made = model(nodes, feeds, {"y": np.object_, "c": np.int64}, {"c0": np.int64(0)})
    for fuse in (True, False):
        session = qrun.Session(made, backend="native", threads=1, fuse=fuse)
        for number in range(RUNS):
            if number == 2:
                monkeypatch.setattr("qrun.running.runs.execute", None)
            found = session.run({"t": np.array([f"a{number}", "b"], object)})
            assert found["y"].tolist() == [f"A{number}", "B"]
            assert found["c"].tolist() == [5]
            found["c"][...] = found["y"][...] = 0  # the caller's own
        monkeypatch.undo()


def test_a_refusal_of_a_node_in_a_later_run_is_told_as_in_the_first() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    feeds = {"x": ONES, "i": np.array(1, np.int64)}
    session = qrun.Session(model(nodes, feeds, {"y": np.float32}, {}), backend="native", threads=1)
    told = set()
    for _ in range(RUNS):
        with pytest.raises(qrun.QrunError) as failed:
            session.run({**feeds, "i": np.array(7, np.int64)})
        told.add(str(failed.value))
        assert np.array_equal(session.run(feeds)["y"], ONES)
    assert len(told) == 1
    assert "SequenceAt" in told.pop()
