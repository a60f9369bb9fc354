"""Inputs that are fed the same values run after run, such as weights that are no initializers:
they become constants of separate `Runs`.

Native kernels of many nodes need constant parameters, which they prepare once. Where a program has a node without a
native kernel, and its parameters are fed the same values again, these values are copied and taken for constants. Each
run compares its feeds with the copies, byte by byte, and uses the usual `Runs` where they differ.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.errors import QrunError, TimeLimitError
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Model
from qrun.running.execution import RunResult
from qrun.running.plan import Step
from qrun.running.runs import Runs

CHANGES = 4
"""How often values may differ from those of the run before, until they are no longer compared."""
LARGEST = 1 << 28
"""The most bytes of inputs that are copied."""


@frozen
class Held:
    """Runs in which these inputs are constants. slow: how many steps ran without a native kernel before that."""

    values: Mapping[str, Array]
    runs: Runs
    slow: int


class SameFeeds:
    """The runs of a model for the graph's outputs. Safe to use from several threads.

    runs: for any feeds; make: makes the Runs of another model. native: whether there are native kernels.
    """

    def __init__(self, runs: Runs, make: Callable[[Model], Runs], native: bool) -> None:
        self._runs, self._make = runs, make
        self._left = CHANGES if native else 0
        self._last: dict[str, Array] = {}
        self._held: Held | None = None
        self._pays = False
        self._lock = threading.Lock()

    def repeated(self, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """See `Runs.repeated`."""
        if not self._left:
            return self._runs.repeated(feeds)
        runs, own = self._chosen(feeds)
        made = runs.repeated(own)
        if made is not None:
            self._learn(runs, feeds)
        return made

    def run(self, feeds: Mapping[str, Array], timed: bool) -> RunResult:
        """See `Runs.run`."""
        runs, own = self._chosen(feeds)
        if runs is self._runs:
            result = runs.run(feeds, None, False, timed)
        else:
            check_feeds(self._runs.model, feeds)
            try:
                result = runs.run(own, None, False, timed)
            except TimeLimitError:
                raise
            except QrunError:  # the usual runs may need less memory, or else report it
                return self._runs.run(feeds, None, False, timed)
        self._learn(runs, feeds)
        return result

    def _chosen(self, feeds: Mapping[str, Array]) -> tuple[Runs, Mapping[str, Array]]:
        """The Runs that take these feeds, and the feeds without the inputs that are constants there."""
        held = self._held
        if held is None or not isinstance(feeds, Mapping) or self._runs.limits.max_memory is not None:
            return self._runs, feeds
        if all(_same(array, feeds.get(name)) for name, array in held.values.items()):
            return held.runs, {name: array for name, array in feeds.items() if name not in held.values}
        with self._lock:
            if self._held is held:
                self._held, self._pays, self._left = None, False, self._left - 1
        return self._runs, feeds

    def _learn(self, runs: Runs, feeds: Mapping[str, Array]) -> None:
        """After a run: look for inputs that get the same values again, and whether taking them for constants pays."""
        settled = not self._left or self._pays or runs.again is None or runs.limits.max_memory is not None
        if settled or not self._lock.acquire(blocking=False):
            return
        try:
            if self._held is None:
                self._compare(feeds)
            elif runs is self._held.runs:
                self._pays = len(_slow(runs)) < self._held.slow
                if not self._pays:
                    self._held, self._left = None, 0
        finally:
            self._lock.release()

    def _compare(self, feeds: Mapping[str, Array]) -> None:
        names = parameters(self._runs)
        given = {name: array for name in names if isinstance(array := feeds.get(name), np.ndarray)}
        same = {name: array for name, array in self._last.items() if _same(array, given.get(name))}
        if not given or sum(array.nbytes for array in given.values()) > LARGEST:
            self._left = 0
        elif same:
            self._hold(same)
        else:
            self._left -= bool(self._last)
            self._last = {name: _copied(array) for name, array in given.items()}

    def _hold(self, values: Mapping[str, Array]) -> None:
        """Make the Runs in which these values are constants, unless nodes would then be fused differently."""
        model, self._last = self._runs.model.settled(), {}
        inputs = tuple(value for value in model.inputs if value.name not in values)
        runs = self._make(replace(model, inputs=inputs, constants={**model.constants, **values}))
        if _steps(runs) == _steps(self._runs):
            self._held = Held(values, runs, len(_slow(self._runs)))
        else:
            self._left = 0


def parameters(runs: Runs) -> list[str]:
    """The inputs that only one step reads, not as its first input, where that step has no native kernel now but might
    have one if the input were constant."""
    model, counts = runs.model, Counter(v.name for v in runs.model.outputs)
    for node, _ in model.everywhere():
        counts.update(node.inputs)
    once = {v.name for v in model.inputs if v.kind == "tensor" and counts[v.name] == 1}
    steps = (step for step in _slow(runs) if step.definition.lowering and not step.bodies)
    return [name for step in steps for name in step.node.inputs[1:] if name in once]


def _slow(runs: Runs) -> list[Step]:
    """The steps of the last program that run without a native kernel."""
    compiled = runs.again.compiled if runs.again else None
    return [compiled.plan.steps[item] for item in compiled.program.listing.steps] if compiled else []


def _steps(runs: Runs) -> list[tuple[str, tuple[str, ...]]]:
    return [(step.node.op_type, step.node.outputs) for step in runs.prepared((), False).plan.steps]


def _copied(array: Array) -> Array:
    made = np.array(array, order="C")
    made.flags.writeable = False
    return made


def _same(held: Array, fed: object) -> bool:
    """Whether these are the same bytes; held: in C order."""
    if not isinstance(fed, np.ndarray) or fed.shape != held.shape or fed.dtype != held.dtype or held.dtype.hasobject:
        return False
    return np.array_equal(_words(held), _words(np.ascontiguousarray(fed)))


def _words(array: Array) -> Array:
    """The bytes of an array in C order, as words of the largest size (8, 4, 2 or 1 bytes) that divides theirs."""
    return array.reshape(-1).view(next(f"u{n}" for n in (8, 4, 2, 1) if array.nbytes % n == 0))
