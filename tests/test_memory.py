"""Small models that ask for too much end with an error that names the node and the limit."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.models import make_model
from helpers.support import node_model

import qrun
from qrun.memory import Budget, human, parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("500 MB", 500 * 10**6), ("1e9", 10**9), ("4096", 4096), ("1.5k", 1536)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "nan", "1e400", "8 apples", "0x10", "inf"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_human() -> None:
    assert [human(n) for n in (0, 1023, 1024, 3 * 2**30, 2**62)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 GiB",
        "4096.0 PiB",
    ]
    assert human(3 * 2**2000) == "2**2001 B"


def test_budget_counts_what_lives() -> None:
    budget = Budget(100)
    array = np.zeros(60, np.uint8)
    budget.hold(array)
    budget.hold(array.reshape(6, 10)[1:])
    budget.claim([40])
    with pytest.raises(qrun.MemoryLimitError):
        budget.claim([41])
    budget.release(array)
    assert (budget.live, budget.peak) == (60, 100)
    budget.release(array[2:])
    assert (budget.live, budget.peak) == (0, 100)


def test_an_empty_tensor_may_still_be_too_large_to_index() -> None:
    Budget(100).claim([0, 2**40])
    with pytest.raises(qrun.MemoryLimitError):
        Budget(100).claim([0, 2**62, 4])


@pytest.mark.parametrize("pads", [[10**9, 10**9], [2**31 - 1, 2**31 - 1]])
def test_padding_of_a_convolution(pads: list[int]) -> None:
    x, w = np.ones((1, 1, 1), np.uint8), np.ones((1, 1, 1), np.uint8)
    model, feeds = node_model("ConvInteger", [x, w], {"pads": pads}, opset=10, outputs=[np.int32])
    with pytest.raises(qrun.MemoryLimitError, match="more memory than allowed") as caught:
        qrun.Session(model, max_memory=2**28).run(feeds)
    assert caught.value.exit_code == 5
    assert "node 0 n (ConvInteger-10)" in caught.value.where
    assert "256.0 MiB" in str(caught.value)


def test_an_outer_product() -> None:
    a, b = np.ones((50_000, 1), np.uint8), np.ones((1, 50_000), np.uint8)
    model, feeds = node_model("MatMulInteger", [a, b], opset=10, outputs=[np.int32])
    with pytest.raises(qrun.MemoryLimitError):
        qrun.Session(model, max_memory=2**28).run(feeds)


@pytest.mark.parametrize("count", [10**12, 2**62])
def test_a_constant_of_a_trillion_elements(count: int) -> None:
    model, feeds = node_model("ConstantOfShape", [np.array([count], np.int64)], opset=9, constants=True)
    assert len(model.SerializeToString()) < 200
    with pytest.raises(qrun.MemoryLimitError):
        qrun.Session(model).run(feeds)


def test_values_are_freed_after_their_last_use() -> None:
    from onnx import helper

    nodes = [helper.make_node("Add", [f"t{i}", f"t{i}"], [f"t{i + 1}"]) for i in range(20)]
    feeds = {"t0": np.ones(100_000, np.float32)}
    result = qrun.Session(make_model(nodes, feeds, "t20", opset=14)).execute(feeds)
    assert result.outputs["t20"][0] == 2.0**20
    assert result.peak_bytes < 4 * 400_000
