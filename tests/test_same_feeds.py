"""Weights that are fed again, the same or others, give what the reference gives,
in every run and whatever came before."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.native import ISAS

import qrun
from qrun.errors import CallError
from qrun.running import samefeeds

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
F, SEED = np.float32, 7
HEAD = '<ir_version: 8, opset_import: ["" : 19]> g '
RUNS = 7
"""Runs with the same weights after which they are constants: a first one, one that a program makes, two that are alike,
and as many again of what is made of them."""

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

MODELS = {
    "norm": "(float[n,8] x, float[8] w, float[8] b) => (float[n,8] y) { y = LayerNormalization(x, w, b) }",
    "lstm": """(float[n,2,4] x, float[1,24,4] w, float[1,24,6] r, float[1,48] b, float[1,2,6] h) => (float[n,1,2,6] y)
               { y = LSTM<hidden_size = 6>(x, w, r, b, , h) }""",
    "turned": "(float[n,3,5,5] x, float[3,2,3,3] w) => (float[n,2,a,c] y) { y = ConvTranspose<strides = [2,2]>(x, w) }",
    "batch": """(float[n,3,4] x, float[3] w, float[3] b, float[3] m, float[3] v) => (float[n,3,4] y)
                { y = BatchNormalization(x, w, b, m, v) }""",
    "two": """(float[n,8] x, float[8] w, float[8] b, float[8] w2) => (float[n,8] y)
              { t = LayerNormalization(x, w, b)
                u = Relu(t)
                y = LayerNormalization(u, w2) }""",
}


def session(text: str, **options: Any) -> qrun.Session:
    model = onnx.parser.parse_model(HEAD + text)
    return qrun.Session(model, cache=False, **options)


def fed(own: qrun.Session, rng: np.random.Generator, n: int = 3) -> Feeds:
    sizes = {v.name: [n if isinstance(size, str) else size for size in v.shape or ()] for v in own.inputs}
    made = {name: rng.standard_normal(shape).astype(F) for name, shape in sizes.items()}
    return {name: abs(array) if name == "v" else array for name, array in made.items()}


def check(own: qrun.Session, reference: qrun.Session, feeds: Mapping[str, Array], what: object) -> None:
    made, expected = own.run(dict(feeds)), reference.run(dict(feeds))
    for name, array in expected.items():
        assert made[name].dtype == array.dtype, name
        assert made[name].tobytes() == array.tobytes(), (what, name)


def backends(own: qrun.Session, feeds: Feeds) -> set[str]:
    return {event.backend for event in own.execute(feeds, observe=False).events}


@pytest.mark.parametrize("name", MODELS)
def test_weights_that_come_again_are_constants(name: str) -> None:
    own, reference, rng = session(MODELS[name]), session(MODELS[name], backend="reference"), np.random.default_rng(SEED)
    feeds = fed(own, rng)
    assert "reference" in backends(own, feeds)
    for turn in range(RUNS):
        check(own, reference, feeds | {"x": fed(own, rng)["x"]}, (SEED, turn))
    assert backends(own, feeds) == {"native"}
    check(own, reference, feeds | {"x": fed(own, rng, 5)["x"]}, "another length")


@pytest.mark.parametrize("name", MODELS)
def test_weights_that_change(name: str) -> None:
    own, reference, rng = session(MODELS[name]), session(MODELS[name], backend="reference"), np.random.default_rng(SEED)
    feeds = fed(own, rng)
    for turn in range(40):
        if rng.integers(6) == 0:
            name = str(rng.choice(list(feeds)))
            feeds = feeds | {name: fed(own, rng)[name]}
        check(own, reference, feeds, (SEED, turn))


def test_weights_that_are_written_in_place() -> None:
    own, reference = session(MODELS["norm"]), session(MODELS["norm"], backend="reference")
    feeds = fed(own, np.random.default_rng(SEED))
    for turn in range(3 * RUNS):
        if turn % RUNS == RUNS - 1:
            feeds["w"][turn % 8] += 1
        check(own, reference, feeds, turn)


def test_a_zero_of_the_other_sign_is_another_value() -> None:
    own, reference = session(MODELS["norm"]), session(MODELS["norm"], backend="reference")
    x = np.tile(np.array([-1, 1], F), (3, 4))
    for turn in range(2 * RUNS):
        bias = np.full(8, 0.0 if turn < RUNS else -0.0, F)
        check(own, reference, {"x": x, "w": np.zeros(8, F), "b": bias}, turn)


def test_states_change_while_weights_stay() -> None:
    own, reference = session(MODELS["lstm"]), session(MODELS["lstm"], backend="reference")
    rng = np.random.default_rng(SEED)
    feeds = fed(own, rng)
    for turn in range(RUNS):
        feeds["h"] = rng.standard_normal((1, 2, 6)).astype(F)
        check(own, reference, feeds, (SEED, turn))
    assert backends(own, feeds) == {"native"}


def test_values_that_change_each_time_are_no_longer_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    own, rng, compared = session(MODELS["norm"]), np.random.default_rng(SEED), []
    same = samefeeds._same
    monkeypatch.setattr(samefeeds, "_same", lambda held, given: compared.append(held) or same(held, given))
    for _ in range(20):
        own.run(fed(own, rng))
    assert 0 < len(compared) <= 2 * samefeeds.CHANGES


def test_steps_are_fused_as_before() -> None:
    """With constant scales, the convolution would be one of integers, which may round to another code."""
    text = """(uint8[1,2,4,4] x, float s, float t) => (uint8[1,2,c,d] y)
        <int8[2,2,3,3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}, float ws = {0.1}>
        { f = DequantizeLinear(x, s)
          g = DequantizeLinear(w, ws)
          c = Conv(f, g)
          y = QuantizeLinear(c, t) }"""
    own, rng = session(text), np.random.default_rng(SEED)
    scales = {"s": np.array(0.013, F), "t": np.array(0.7, F)}
    feeds = {"x": rng.integers(0, 255, (1, 2, 4, 4), np.uint8), **scales}
    nodes = [[e.node.op_type for e in own.execute(feeds, observe=False).events if e.node] for _ in range(RUNS)]
    assert "Conv" in nodes[0]
    assert all(kinds == nodes[0] for kinds in nodes)


def test_a_limit_of_memory_leaves_no_room_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    own, reference = session(MODELS["norm"]), session(MODELS["norm"], backend="reference")
    feeds = fed(own, np.random.default_rng(SEED))
    for turn in range(RUNS):
        check(own, reference, feeds, turn)
    own.max_memory = 1 << 24
    assert "reference" in backends(own, feeds)
    limited, copied, copy = session(MODELS["norm"], max_memory=1 << 24), list[Array](), samefeeds._copied
    monkeypatch.setattr(samefeeds, "_copied", lambda array: copied.append(array) or copy(array))
    for _ in range(RUNS):
        limited.run(feeds)
    assert not copied


def test_a_later_process_takes_them_for_constants_too(tmp_path: Path) -> None:
    """It runs a program that was kept, in which the node has no kernel."""
    path = tmp_path / "norm.onnx"
    path.write_bytes(onnx.parser.parse_model(HEAD + MODELS["norm"]).SerializeToString())
    reference = session(MODELS["norm"], backend="reference")
    for _ in range(2):
        own = qrun.Session(path, cache=tmp_path / "cache")
        feeds = fed(own, np.random.default_rng(SEED))
        assert "reference" in backends(own, feeds)
        for turn in range(RUNS):
            check(own, reference, feeds, turn)
        assert backends(own, feeds) == {"native"}


def test_sizes_that_inputs_share_are_checked() -> None:
    own = session("(float[n,8] x, float[n] w) => (float[n,8] y) { y = LayerNormalization(x, w) }")
    feeds = {"x": np.arange(64, dtype=F).reshape(8, 8), "w": np.ones(8, F)}
    for _ in range(RUNS):
        own.run(feeds)
    with pytest.raises(CallError, match="x"):
        own.run(feeds | {"x": np.ones((3, 8), F)})


def test_feeds_that_do_not_fit_are_refused_as_before() -> None:
    own = session(MODELS["norm"])
    feeds = fed(own, np.random.default_rng(SEED))
    wrong: list[Feeds] = [
        feeds | {"w": np.ones(7, F)},
        feeds | {"w": np.ones(8, np.float64)},
        {n: a for n, a in feeds.items() if n != "w"},
        {n: a for n, a in feeds.items() if n != "x"},
        feeds | {"z": np.ones(1, F)},
        feeds | {"x": np.ones((2, 9), F)},
    ]

    def told() -> list[str]:
        found = []
        for other in wrong:
            with pytest.raises(CallError) as caught:
                own.run(other)
            found.append(str(caught.value))
        return found

    before = told()
    for _ in range(RUNS):
        own.run(feeds)
    assert told() == before


def test_several_threads() -> None:
    own, reference, rng = (
        session(MODELS["norm"]),
        session(MODELS["norm"], backend="reference"),
        np.random.default_rng(SEED),
    )
    many = [fed(own, rng) for _ in range(3)]
    order = [0] * 12 + [0, 1] * 6 + [2] * 24
    expected = [reference.run(feeds)["y"].tobytes() for feeds in many]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: own.run(many[n])["y"].tobytes(), order))
    assert made == [expected[n] for n in order]
