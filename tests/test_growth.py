"""What a command does grows with the model, not faster: calls of each function, for a model and one twice as large.

``python tests/test_growth.py SMALL [SHAPE...]`` tells all that grows faster, from models of this size.
"""

from __future__ import annotations

import cProfile
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import growth
from helpers.cli import call
from helpers.growth import Made

from qrun import Session


@pytest.fixture(autouse=True)
def _nothing_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers clear the cache now and then, in which they look at all of its files, whatever wrote them."""
    monkeypatch.setenv("QRUN_CACHE_SIZE", "1000000GB")


SMALL = 24
SETTINGS = {
    "qrun.declare.frozen._FEW": 0,
    "qrun.running.profiling.PATIENCE_NS": 0,
    "qrun.native.machine.memory.MANY": 8,
    "qrun.native.plan.chains._STEPS": 8,
    "qrun.ops.lowering.pointwise.JOINED": 8,
    "qrun.passes._qdq.JOINED": 8,
}
"""No repetitions that depend on the time; large models are large from here on;
objects are made in one way from the first on."""
MOST = 2.3
"""A function that is called once for each node is called twice as often; one called for each pair, four times."""
Command = Callable[[Path], None]


def words(*before: str, after: tuple[str, ...] = ()) -> Command:
    def run(path: Path) -> None:
        assert call(*before, path, *after).code in (0, 1)

    return run


def session(path: Path) -> None:
    """The session in Python; what it makes only for later runs is made too."""
    native = Session(path, cache=False)
    feeds = {v.name: growth.random_array(v) for v in native.inputs}
    for _ in range(3):
        native.run(feeds)


RANDOM = ("--random",)
JUDGED: tuple[Command, ...] = (words("check"), words("check", "--format", "sarif"), words("inspect", "--nodes"))
RUN: tuple[Command, ...] = (
    words(after=RANDOM), words("profile", after=(*RANDOM, "-n", "1")), session,
    words("compare", after=(*RANDOM, "--against", "reference")),
)  # fmt: skip


def calls(command: Command, path: Path) -> Counter[str]:
    """How often each Python function was called, after a call that has made what is kept between commands."""
    profile = cProfile.Profile(builtins=False)
    profile.enable()
    command(path)
    profile.disable()
    found: Counter[str] = Counter()
    for entry in profile.getstats():
        if not isinstance(entry.code, str):
            code = entry.code
            place = f"{Path(code.co_filename).name}:{code.co_firstlineno}({code.co_name})"
            found[place] += entry.callcount
    return found


def faster(command: Command, made: Made, small: int, folder: Path) -> list[str]:
    """The functions that are called too often for the larger of two models."""
    counts = []
    for size in (small, 2 * small):
        path = folder / f"{made.__name__}_{size}.onnx"
        if not path.exists():
            path.write_bytes(made(size).SerializeToString())
        counts.append(calls(command, path))
    few, many = counts
    return [f"{place}: {few[place]}, then {count}" for place, count in many.most_common()
            if few[place] > 2 * small and count > MOST * few[place]]  # fmt: skip


CASES = [(made, command) for made in growth.SHAPES for command in JUDGED]
CASES += [(made, command) for made in growth.RUNNABLE for command in RUN]


@pytest.mark.parametrize("made", growth.SHAPES, ids=lambda made: made.__name__)
def test_no_command_grows_faster_than_its_model(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in SETTINGS.items():
        monkeypatch.setattr(name, value)
    found = [faster(command, made, SMALL, tmp_path) for each, command in CASES if each is made]
    assert found == [[]] * len(found)


COSTS = (
    (growth.chain, 95, 105, 400),
    (growth.made_readers, 115, 160, 550),
    (growth.inputs, 25, 60, 80),
    (growth.outputs, 30, 80, 170),
)
"""Python calls for one more node, input or output: of check, inspect and run. 100,000 of them must take seconds."""


@pytest.mark.parametrize(("made", "check", "inspect", "run"), COSTS, ids=[case[0].__name__ for case in COSTS])
def test_one_more_costs_few_calls(
    made: Made, check: int, inspect: int, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in SETTINGS.items():
        monkeypatch.setattr(name, value)
    for command, most in ((words("check"), check), (words("inspect"), inspect), (words(after=RANDOM), run)):
        counts = []
        for size in (100, 200):
            path = tmp_path / f"{size}.onnx"
            path.write_bytes(made(size).SerializeToString())
            calls(command, path)
            counts.append(calls(command, path).total())
        assert (counts[1] - counts[0]) / 100 < most, command


if __name__ == "__main__":
    import tempfile
    import time
    from importlib import import_module

    for name, value in SETTINGS.items():
        module, _, constant = name.rpartition(".")
        setattr(import_module(module), constant, value)
    with tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        for place, (shape, command) in enumerate(CASES):
            if sys.argv[2:] and shape.__name__ not in sys.argv[2:]:
                continue
            start = time.process_time()
            told = faster(command, shape, int(sys.argv[1]), Path(here))
            print(
                shape.__name__, place, round(time.process_time() - start, 2), *told[:8], sep="\n    " if told else " "
            )
