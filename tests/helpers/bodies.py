"""Models with graphs inside nodes: what native kernels make of them is what the reference makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

import qrun
from helpers.native import OBJECTS, Array
from helpers.support import assert_equal


def assert_same(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]], threads: int = 1) -> None:
    """Run after run, with and without events: the same outputs, and as many runs of each node in an inner graph."""
    reference = qrun.Session(model, backend="reference", fuse=False)
    session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS, fuse=False)
    for number, given in enumerate(feeds):
        want, got = (one.execute(given, observe=False) for one in (reference, session))
        plain = session.run(given)
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, f"run {number}: {key}")
            assert_equal(plain[key], array, f"run {number}, without events: {key}")
        told = [{(e.path, e.op, e.runs) for e in ran.inside if e.op != "Constant"} for ran in (want, got)]
        assert told[0] == told[1], f"run {number}"
        assert [e.node.label for e in got.events if e.node] == [e.node.label for e in want.events if e.node]


def by_threads(names: Iterable[str]) -> list[tuple[str, int]]:
    """Cases by name, every other one by two threads."""
    return [(name, 1 + number % 2) for number, name in enumerate(names)]
