"""Native softmax and layer normalization of float32 equal the reference kernels bit for bit, within their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import edges
from helpers.native import OBJECTS, Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.kernels.normalize import LayerNorm
from qrun.native.kernels.reduce import Reduction
from qrun.native.kernels.softmax import LogSoftmaxF32, SoftmaxF32
from qrun.ops.layernorm import layer_normalization
from qrun.ops.reduce import log_softmax, reduce_mean, softmax

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
    model, feeds = node_model(op_type, [x], {"axis": axis}, outputs=[dtype])
    result = same_everywhere(model, feeds, threads=2)
    assert [event.backend for event in result.events] == ["native"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("op_type", "others", "attributes", "opset"), NODES)
def test_nodes(op_type: str, others: list[Any], attributes: dict[str, Any], opset: int, threads: int) -> None:
    x = rows(np.random.default_rng(5), 2 * 3 * 5, 10).reshape(2, 3, 5, 10)
    model, feeds = node_model(op_type, [x, *others], attributes, opset=opset, constants=[1, 2])
    result = same_everywhere(model, feeds, threads=threads)
    assert [event.backend for event in result.events] == ["native"]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "outputs", "why"),
    [
        ("Softmax", [np.ones((2, 3))], {}, [np.float64], "no native kernel for float64"),
        ("Softmax", [np.ones((2, 0), F)], {}, [F], "no elements"),
        ("LayerNormalization", [np.ones((2, 3), F), np.ones((2, 1), F)], {}, [F], "its scale differs from row to row"),
        ("ReduceMean", [np.ones((2, 3), F)], {"noop_with_empty_axes": 1}, [F], "over no axes"),
        ("LayerNormalization", [np.ones((2, 3), F), np.ones(3, F)], {}, [F, F], "its mean or deviation is asked for"),
    ],
)
def test_what_the_reference_runs(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], outputs: list[Any], why: str
) -> None:
    model, feeds = node_model(op_type, inputs, attributes, outputs=outputs, constants=[1])
    assert_left(model, feeds, why)


def test_a_scale_that_is_fed() -> None:
    model, feeds = node_model("LayerNormalization", [np.ones((2, 3), F), np.ones(3, F)], {})
    (event,) = qrun.Session(model, cache=OBJECTS).execute(feeds).events
    assert (event.backend, event.why) == ("reference", "Scale is not constant")


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
