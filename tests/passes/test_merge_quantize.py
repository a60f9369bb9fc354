"""Equal QuantizeLinear nodes of one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.passes import Graph, assert_same, codes, ops

from qrun.passes.merge_quantize import merge_quantize

F, U8 = np.float32, np.uint8


def test_one_quantization_for_each_reader_is_one() -> None:
    rng = np.random.default_rng(1)
    g = Graph()
    a, b = (g.dq(g.feed(codes(rng, U8, (2, 3))), 0.1, U8(3)) for _ in "ab")
    y = g.node("Add", a, b)
    parts = [g.dq(g.q(y, 0.2, U8(9)), 0.2, U8(9)) for _ in range(3)]
    g.output(*(g.node("Softmax", p, axis=i % 2) for i, p in enumerate(parts)))
    done = assert_same(g)
    assert ops(done).count("QLinearAdd") == 1
    assert "QuantizeLinear" not in ops(done)


def quantized_twice(second: Any, **attributes: Any) -> tuple[Graph, list[str]]:
    g = Graph(21)
    x = g.feed(np.linspace(-3, 3, 12).astype(F).reshape(4, 3))
    return g, [g.q(x, [0.1, 0.2, 0.3], np.array([1, 2, 3], U8)), g.q(x, *second, **attributes)]


@pytest.mark.parametrize("kept", [(), (0,), (1,), (0, 1)])
def test_whichever_is_asked_for(kept: tuple[int, ...]) -> None:
    g, names = quantized_twice(([0.1, 0.2, 0.3], np.array([1, 2, 3], U8)))
    g.output(*(g.node("Cast", name, to=1) for name in names))
    done = assert_same(g, keep=[names[i] for i in kept])
    assert ops(done).count("QuantizeLinear") == 1
    assert ops(done).count("Identity") == (len(kept) == 2)


@pytest.mark.parametrize(
    ("second", "attributes"),
    [
        (([0.1, 0.2, 0.4], np.array([1, 2, 3], U8)), {}),
        (([0.1, 0.2, 0.3], np.array([1, 2, 4], U8)), {}),
        (([0.1, 0.2, 0.3], np.array([1, 2, 3], np.int8)), {}),
        (([0.1, 0.2, 0.3], np.array([1, 2, 3], U8)), {"axis": -1}),
    ],
)
def test_others_stay(second: Any, attributes: Any) -> None:
    g, names = quantized_twice(second, **attributes)
    assert ops(assert_same(g.output(*names))) == ["QuantizeLinear"] * 2
    assert len(merge_quantize(g.model(), (), "exact").model.nodes) == 2
