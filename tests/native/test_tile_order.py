"""Threads take tiles in any order: results must not depend on it, and no tile may write what is another one's.

Kernels are made that take their tiles last to first, and run on one thread, though work is cut for two: a tile that
writes too much, and whose mistake the next one would cover up, is found every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import graphs
from helpers.emulation import emulated_sets, emulation
from helpers.models import make_model, typed
from helpers.native import ISAS, Array
from onnx import ModelProto, TensorProto, helper

import qrun
import qrun.native.machine.compile

SETS = [*ISAS, *emulated_sets()]
CLAIM = re.compile(
    r"^  (%[\w.]+) = (atomicrmw add ptr %next, i64 1 monotonic)\n  (%[\w.]+) = icmp ult i64 \1, (%?[\w.]+)$", re.M
)
ROUNDS = "cmpxchg ptr %next"
"""Tiles that wait for those before them stay in order."""
BACKWARDS = r"  \1.raw = \2\n  \3 = icmp ult i64 \1.raw, \4\n  \1.end = sub i64 \4, 1\n  \1 = sub i64 \1.end, \1.raw"

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backwards")


@pytest.fixture(autouse=True)
def backwards() -> Iterator[None]:
    forwards, seen = qrun.native.machine.compile.emitted, list[str]()

    def emitted(spec: Any) -> tuple[str, tuple[str, ...]]:
        text, names = forwards(spec)
        made, found = CLAIM.subn(BACKWARDS, text)
        assert found == 1 or ROUNDS in text, spec
        seen.append(spec.kind)
        return made, names

    with emulation(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(qrun.native.machine.compile, "emitted", emitted)
        yield
    assert seen


def check(model: ModelProto, feeds: dict[str, Array], isa: str, objects: Path, label: str) -> None:
    names = [name for node in model.graph.node for name in node.output]
    ends = [value.name for value in model.graph.output]
    reference = qrun.Session(model, backend="reference", fuse=True)
    session = qrun.Session(model, backend="native", isa=isa, threads=2, cache=objects / isa, fuse=True)
    engine = session._engine
    assert engine is not None
    engine.pool = None
    for asked in (names, ends, ends):
        want = reference.run(feeds, asked)
        for name, array in session.run(feeds, asked).items():
            assert np.array_equal(array, want[name], equal_nan=array.dtype.kind == "f"), (label, isa, name)


@pytest.mark.parametrize("isa", SETS)
def test_graphs(isa: str, objects: Path) -> None:
    first = 8000 + 8 * SETS.index(isa)
    for seed in range(first, first + (24 if isa == SETS[0] else 8)):
        model = graphs.random_graph(seed)
        check(model, graphs.feed(model, seed), isa, objects, f"seed {seed}")


@pytest.mark.parametrize("isa", SETS)
def test_convolutions_of_few_rows_and_channels(isa: str, objects: Path) -> None:
    """Several images, so that they are tiles, with as many rows as a block has, or a few less or more."""
    rng = np.random.default_rng(11)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 17):
        for channels in (1, 3, 8, 9, 15, 16, 17, 33):
            model = convolution(rng, rows, channels)
            feeds = {"x": rng.integers(0, 256, (3, 17, rows)).astype(np.uint8)}
            check(model, feeds, isa, objects, f"{rows} rows, {channels} channels")


def convolution(rng: np.random.Generator, rows: int, channels: int) -> ModelProto:
    numbers = {
        "s": np.float32(0.02), "z": np.uint8(rng.choice([0, 3, 128])), "ys": np.float32(1.5), "yz": np.uint8(100),
        "w": rng.integers(-128, 128, (channels, 17, 1)).astype(np.int8), "wz": np.int8(0),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "wz", "ys", "yz"], ["y"])
    return make_model(
        [node], {"x": typed(TensorProto.UINT8, [3, 17, rows])}, {"y": typed(TensorProto.UINT8)}, numbers, opset=17
    )
