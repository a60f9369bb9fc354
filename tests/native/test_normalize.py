"""Native softmax and normalizations equal the reference kernels bit for bit, on every set, within their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import edges
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS, Array, Guarded, engine
from helpers.placed import natively, run_placed, same_everywhere
from helpers.pointwise import Rows, guarded
from helpers.support import MS, assert_equal, node_model
from helpers.widths import every_width
from onnx import helper

import qrun
from qrun.native.kernels.reduce import Reduction
from qrun.native.kernels.rowwise import BatchNorm, InverseRms, LayerNorm, Lrn, RmsNorm
from qrun.native.kernels.softmax import LogSoftmaxF32, SoftmaxF32
from qrun.ops.layernorm import layer_normalization, simplified_layer_normalization
from qrun.ops.normalization import batch_normalization, lrn
from qrun.ops.reduce import log_softmax, reduce_mean, softmax

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
F = np.float32
Row = Callable[[Array], Array]


def rows(rng: np.random.Generator, count: int, length: int) -> Array:
    """Plain ones, and ones that are equal, far from 0, far apart, tiny, or not finite."""
    x = rng.normal(0, 2, (count, length))
    kind = rng.integers(0, 10, count)
    x[kind == 1] = 3.25
    x[kind == 2] += 4096
    x[kind == 3] = 1e8 + np.round(x[kind == 3]) * 64
    x[kind == 4] *= 60
    x[kind == 5] *= 1e-25
    x[kind == 6] *= 1e30
    x[kind == 9] = 2.0**40 + np.round(x[kind == 9]) * 2.0**17
    some = rng.random(x.shape) < 0.2
    x = np.where(some & (kind == 7)[:, None], rng.choice([np.inf, -np.inf, np.nan], x.shape), x)
    x = np.where(some & (kind == 8)[:, None], -np.inf, x)
    return x.astype(F)


def share_row(x: Array) -> Array:
    return softmax(x)  # type: ignore[no-any-return]


def log_row(x: Array) -> Array:
    return log_softmax(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_softmax_and_its_logarithms(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(1)
    for length in edges.ROWS:
        x = rows(rng, 43, length)
        for threads in (1, 2):
            for kind, row in ((SoftmaxF32, share_row), (LogSoftmaxF32, log_row)):
                operation = kind(engine(isa, threads), x.shape, length)
                got = run_placed(engine(isa, threads), operation, [x], (0, 0), at_end)
                assert_equal(got, row(x), f"{kind.kind} of rows of {length}")


@every_width
def test_zeros_of_rows_of_zeros_have_the_sign_of_the_reference(isa: str) -> None:
    rng, zeros = np.random.default_rng(8), np.array([0.0, -0.0], F)
    for n in (1, 4, 7, 33):
        x, scale, bias = rng.choice(zeros, (5, n)), rng.choice([*zeros, F(1)], n).astype(F), rng.choice(zeros, n)
        x[0] = -0.0
        for inputs in ([x, scale], [x, scale, bias], [x, np.zeros(n, F)]):
            model, feeds = node_model("LayerNormalization", inputs, opset=17, constants=[*range(1, len(inputs))])
            want = qrun.Session(model, backend="reference").run(feeds)["y0"]
            got = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS).run(feeds)["y0"]
            assert_equal(got, want, f"{n} elements, {len(inputs)} inputs")


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_layer_normalization(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(2)
    for length in edges.ROWS:
        x = rows(rng, 40, length)
        scale, bias = (rng.normal(i, 0.5, length).astype(F) for i in (1, 0))
        for given, epsilon in ((bias, 1e-5), (None, 1e-12), (None, 0.0)):
            with np.errstate(all="ignore"):
                want = layer_normalization(x, scale, given, epsilon=epsilon)[0]
            operation = LayerNorm(engine(isa), x.shape, scale, given, float(F(epsilon)))
            got = run_placed(engine(isa), operation, [x], (0, 0), at_end)
            assert_equal(got, want, f"rows of {length}, epsilon {epsilon}")


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_means(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(6)
    for length in edges.ROWS:
        x = rows(rng, 40, length)
        for shape in ((40,), (40, 1)):
            operation = Reduction(engine(isa), "mean", x.shape, length, shape)
            got = run_placed(engine(isa), operation, [x], (0, 0), at_end)
            assert_equal(got, reduce_mean(x, (1,), len(shape) > 1), f"rows of {length}")


@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("epsilon", [np.inf, -np.inf, np.nan, -1e3, 3e38])
def test_an_epsilon_that_is_no_small_number(op_type: str, epsilon: float) -> None:
    x = np.random.default_rng(3).normal(0, 3, (9, 40)).astype(F)
    model, feeds = node_model(op_type, [x, np.linspace(-2, 2, 40, dtype=F)], {"epsilon": epsilon}, opset=23)
    made = same_everywhere(model, feeds).outputs["y0"]
    assert (made == 0).all() if epsilon == np.inf else np.isnan(made).all() or epsilon > 0


NODES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("Softmax", [], {}, 13),
    ("Softmax", [], {"axis": 3}, 13),
    *(("Softmax", [], {"axis": axis}, 13) for axis in (0, 1, 2)),
    ("Softmax", [], {"axis": 2}, 11),
    ("Softmax", [], {"axis": 0}, 11),
    *(("LogSoftmax", [], {"axis": axis}, 13) for axis in (0, 1, 2, 3)),
    *(("LogSoftmax", [], {"axis": axis}, 11) for axis in (0, 2)),
    ("LayerNormalization", [np.linspace(-1, 2, 10, dtype=F)], {}, 17),
    ("LayerNormalization", [np.linspace(-1, 2, 10, dtype=F), np.ones((1, 1, 1, 10), F)], {"epsilon": 0.1}, 17),
    ("LayerNormalization", [np.ones((5, 1), F), np.ones((), F)], {"axis": 2}, 17),
    ("LayerNormalization", [np.ones((3, 5, 10), F)], {"axis": -3, "stash_type": 16}, 17),
    ("ReduceMean", [], {"axes": [-1]}, 13),
    ("ReduceMean", [], {"axes": [3, 1, 2], "keepdims": 0}, 13),
    ("ReduceMean", [], {}, 13),
    ("ReduceMean", [np.array([2, 3], np.int64)], {"keepdims": 0}, 18),
    ("ReduceMean", [], {}, 18),
]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_shares_of_narrow_types_along_any_axis(op_type: str, axis: int, dtype: Any) -> None:
    x = np.random.default_rng(axis).normal(0, 3, (4, 17, 9)).astype(dtype)
    natively(*node_model(op_type, [x], {"axis": axis}, outputs=[dtype]), threads=2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("op_type", "others", "attributes", "opset"), NODES)
def test_nodes(op_type: str, others: list[Any], attributes: dict[str, Any], opset: int, threads: int) -> None:
    x = rows(np.random.default_rng(5), 2 * 3 * 5, 10).reshape(2, 3, 5, 10)
    natively(*node_model(op_type, [x, *others], attributes, opset=opset, constants=[1, 2]), threads=threads)


@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_results_beyond_float32_are_infinite_without_a_warning(constants: tuple[int, ...]) -> None:
    x, scale, bias = np.array([[1, 0, 0, -1]], F), np.full(4, 3.4e38, F), np.zeros(4, F)
    model, feeds = node_model("LayerNormalization", [x, scale, bias], outputs=(F,), constants=constants)
    session = qrun.Session(model, cache=OBJECTS)
    for _ in range(3):
        assert session.run(feeds)["y0"].tolist() == [[np.inf, 0, 0, -np.inf]]


@every_width
def test_a_scale_of_zero_keeps_the_sign_of_the_product(isa: str) -> None:
    x = np.random.default_rng(3).normal(size=(3, 31)).astype(F)
    for scale in (0.0, -0.0):
        for bias in (None, np.zeros(31, F), np.full(31, -0.0, F)):
            weight = np.full(31, scale, F)
            want = layer_normalization(x, weight, bias)[0]
            operation = LayerNorm(engine(isa), x.shape, weight, bias, float(F(1e-5)))
            assert engine(isa).run(operation, [x]).tobytes() == want.tobytes()


F, H = np.float32, np.float16
SIMPLIFIED, SKIPPED = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"


def marked(rng: np.random.Generator, count: int, length: int) -> Array:
    """Rows with zeros of both signs among them, some of nothing else."""
    x = rows(rng, count, length)
    x[rng.random(x.shape) < 0.1] = -0.0
    x[::7] = 0
    return x


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_root_mean_squares(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(2)
    for length in edges.ROWS:
        x, scale = marked(rng, 40, length), rng.normal(0, 0.5, length).astype(F)
        for epsilon in (1e-5, 1e-12, 0.0):
            want = [np.asarray(y) for y in simplified_layer_normalization(x, scale, epsilon=epsilon)]
            for threads in (1, 2):
                native, number = engine(isa, threads), float(F(epsilon))
                norm = RmsNorm(native, x.shape, scale, number)
                assert_equal(run_placed(native, norm, [x], (0, 0), at_end), want[0], f"{length}, {epsilon}")
                inverse = InverseRms(native, x.shape, length, (40, 1), number)
                assert_equal(run_placed(native, inverse, [x], (0, 0), at_end), want[1], f"{length}, {epsilon}")


@pytest.mark.parametrize("dtype", [F, H])
def test_nodes_of_root_mean_squares(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for shape, axis in (((2, 3, 40), -1), ((2, 3, 40), 1), ((3, 17), 0), ((1, 1, 64), 2)):
        x, scale = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[axis:]).astype(dtype)
        for op_type, outputs in (("RMSNormalization", [dtype]), (SIMPLIFIED, [dtype]), (SIMPLIFIED, [dtype, F])):
            for weight in (scale, scale.reshape(-1)[:1]):
                model, feeds = node_model(
                    op_type, [x, weight], {"axis": axis}, opset=23, outputs=outputs, constants=[1], ir_version=11
                )
                event = same_everywhere(model, feeds).events[0]
                assert (event.backend == "native") == (len(outputs) == 1 or dtype == F), event.why


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("op_type", [SKIPPED, "SkipLayerNormalization"])
def test_behind_other_nodes(op_type: str, kept: bool) -> None:
    """The sums, an output of the graph or read by another node, are made once, and read by the normalization."""
    rng = np.random.default_rng(5)
    x = [rng.normal(size=(1, 5, 48)).astype(F) for _ in range(2)]
    weights = {name: rng.normal(size=48).astype(F) for name in ("gamma", "beta", "bias")}
    names = ["gamma", "bias"] if op_type == SKIPPED else ["gamma", "beta", "bias"]
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["product"]),
        helper.make_node(op_type, ["product", "b", *names], ["y", "", "", "sum"], domain=MS, epsilon=1e-6),
        helper.make_node("Neg", ["sum"], ["less"]),
        helper.make_node(op_type, ["less", "y", *names], ["z"], domain=MS),
    ]
    feeds = dict(zip("ab", x, strict=True))
    model = make_model(nodes, feeds, "sum y z" if kept else "z", {n: weights[n] for n in names}, opset=17)
    natively(model, feeds)


def batch(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, list[Array]]:
    """x, and scale, bias, mean and variance, which may be 0 or negative."""
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38], shape)
    x = np.where(rng.random(shape) < 0.1, special, rng.standard_normal(shape)).astype(F)
    scale, bias, mean = (rng.standard_normal(shape[1]).astype(F) for _ in range(3))
    return x, [scale, bias, mean, rng.choice(np.array([0.5, 2.7, 0.0, 1e-9, -1.0], F), shape[1])]


@every_width
@pytest.mark.parametrize("threads", [1, 3])
def test_batch_norm(isa: str, threads: int) -> None:
    rng = np.random.default_rng(threads)
    for channels in (1, 3, 4, 7, 8, 15, 16, 17, 33, 64):
        for shape in ((2, channels, 3, 5), (7, channels), (1, channels, 40)):
            x, params = batch(rng, shape)
            want = batch_normalization(x, *params)[0]
            scale, bias, mean, var = (param.astype("d") for param in params)
            with np.errstate(all="ignore"):
                factor = scale / np.sqrt(var + float(F(1e-5)))
            operation = BatchNorm(engine(isa, threads), shape, mean, factor, bias)
            for gaps in ((0, 0), (3, 0), (1, 5)):
                strides = [4 * (channels + gap) if gap else 0 for gap in gaps]
                for at_end in (True, False):
                    made = run_placed(engine(isa, threads), operation, [x], strides, at_end)
                    assert_equal(made, want, f"{shape} {gaps}")


@every_width
def test_every_step_of_batch_norm_rounds(isa: str) -> None:
    """Sums that cancel show whether the product was rounded before."""
    rng = np.random.default_rng(4)
    scale, mean, near = (rng.standard_normal(64).astype(F) for _ in range(3))
    var = np.abs(rng.standard_normal(64)).astype(F)
    x = near[:, None] * (1 + rng.integers(-9, 10, (1, 64, 50)) * 2.0**-22).astype(F)
    factor = scale / np.sqrt(var.astype("d") + float(F(1e-5)))
    bias = ((mean.astype("d") - near) * factor).astype(F)
    operation = BatchNorm(engine(isa), x.shape, mean, factor, bias)
    assert_equal(engine(isa).run(operation, [x]), batch_normalization(x, scale, bias, mean, var)[0])


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_norm_nodes(opset: int) -> None:
    rng = np.random.default_rng(opset)
    for shape in ((2, 5, 4, 3), (3, 20), (1, 9, 2, 3, 4)):
        x, params = batch(rng, shape)
        natively(
            *node_model("BatchNormalization", [x, *params], {"epsilon": 0.01}, constants=(1, 2, 3, 4), opset=opset)
        )


CHANNEL_SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((1, 2, 3), 2),
    ((2, 6, 5, 7), 3),
    ((3, 4, 1), 2),
    ((2, 8, 33, 31), 1),
    ((1, 12, 3, 4, 5), 4),
    ((2, 3), 3),
    ((1, 1, 1, 700), 1),
]


def channel_case(shape: tuple[int, ...], groups: int, dtype: Any, group: bool) -> tuple[Any, dict[str, Array]]:
    rng = np.random.default_rng(len(shape) + groups)
    x = rng.normal(0.3, 2, shape).astype(dtype)
    if x.size > 300:
        x[:, -1] = rng.choice([0.5, 0.5, np.inf, np.nan, -0.0], x[:, -1].shape)
        x[0, 0] = 3
    scale, bias = (rng.normal(0, 1, shape[1]).astype(dtype) for _ in range(2))
    scale[0], bias[-1] = -0.0, 0
    options = {"epsilon": 1e-3} | ({"num_groups": groups} if group else {})
    name = "GroupNormalization" if group else "InstanceNormalization"
    return node_model(name, [x, scale, bias], options, outputs=[dtype], constants=[1, 2])


@every_width
@pytest.mark.parametrize("group", [False, True])
def test_channel_norms(isa: str, group: bool) -> None:
    for shape, groups in CHANNEL_SHAPES:
        for threads in (1, 2):
            natively(*channel_case(shape, groups, np.float32, group), isa=isa, threads=threads)


@pytest.mark.parametrize(("dtype", "group"), [(np.float16, False), (np.float16, True), (ml_dtypes.bfloat16, True)])
def test_channel_norms_of_narrow_types(dtype: Any, group: bool) -> None:
    for shape, groups in CHANNEL_SHAPES:
        natively(*channel_case(shape, groups, dtype, group))


def test_channel_norms_behind_a_chain_and_for_other_shapes() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["a", "two"], ["m"]),
        helper.make_node("InstanceNormalization", ["m", "s", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GroupNormalization", ["d", "s", "b"], ["y"], num_groups=3),
    ]
    rng = np.random.default_rng(4)
    shapes = {"w": (6, 3, 3, 3), "s": (6,), "b": (6,), "two": (6, 1, 1)}
    stored = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    model = make_model(nodes, {"x": ["n", 3, "h", "w"]}, "y", stored)
    sessions = [qrun.Session(model, backend="native", cache=OBJECTS, threads=threads) for threads in (1, 2)]
    reference = qrun.Session(model, backend="reference")
    for shape in ((1, 3, 20, 24), (2, 3, 5, 5), (1, 3, 20, 24)):
        feeds = {"x": rng.normal(0, 1, shape).astype(np.float32)}
        want = reference.run(feeds)["y"]
        for session in sessions:
            for _ in range(3):
                assert_equal(session.run(feeds)["y"], want, str(shape))


def lrn_numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    x = (rng.integers(-128, 128, shape) * F(0.37)).astype(F)
    return np.where(rng.random(shape) < 0.05, rng.choice([0, np.inf, 1e30, 1e-30, np.nan], shape), x).astype(F)


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_lrn(isa: str, at_end: bool) -> None:
    rng, native, guard = np.random.default_rng(2), engine(isa), Guarded()
    for channels in (1, 2, 3, 4, 7, 8, 9, 17, 64):
        x = lrn_numbers(rng, (2, channels, 3, 1))
        for size, alpha, bias in ((1, 1e-4, 1.0), (2, 0.5, 2.0), (5, 1e-4, 1.0), (5, -0.3, 0.1), (16, 1e-2, 0.0)):
            before, after = min((size - 1) // 2, channels - 1), min(size // 2, channels - 1)
            planned = Lrn(native, x.shape, before, after, float(F(alpha)) / size, float(F(bias)))
            want = lrn(x, alpha=alpha, bias=bias, size=size)
            for strides in ((0, 0), (4 * channels + 12, 0), (4 * channels + 4, 4 * channels + 20)):
                got = Rows(planned, strides, guarded(guard, at_end)).run(native, [x])
                rows = np.ascontiguousarray(np.moveaxis(want, 1, -1)).reshape(-1, channels)
                assert_equal(got.view(F), rows, f"{channels} channels, size {size}, {strides}")


@pytest.mark.parametrize("threads", [1, 2])
def test_lrn_sessions(threads: int) -> None:
    x = lrn_numbers(np.random.default_rng(3), (2, 40, 30, 20))
    for attributes in ({"size": 5}, {"size": 4, "alpha": 0.3, "bias": 1.5}, {"size": 15, "alpha": 2.0}):
        model, feeds = node_model("LRN", [x], attributes, outputs=[F])
        session = qrun.Session(model, threads=threads, cache=OBJECTS)
        for _ in range(3):
            result = session.execute(feeds, observe=False)
            assert result.events[0].backend == "native"
            assert_equal(result.outputs["y0"], lrn(x, **attributes))
