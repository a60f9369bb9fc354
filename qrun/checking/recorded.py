"""One output beside its record: where they differ, and whether a tie explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from qrun.comparing.differences import Tolerance, difference, distances, plain
from qrun.comparing.ties import NEAR, before_rounding, ties
from qrun.declare.frozen import frozen, keys
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node
from qrun.running.session import Session

Verdict = Literal["equal", "differs", "tie", "error", "unclassified"]


@frozen
class ComparedOutput:
    """One output beside its record.

    differing, total: elements outside the tolerance, of how many; largest: the largest difference; first, got,
    recorded: the first element that differs; exact: its value before rounding, if that is known.
    verdict: ``equal``; ``differs`` (floats); for integers ``tie`` (every differing element is one step off, and within
    1e-5 steps of a tie), ``error``, or ``unclassified``.
    """

    KEYS = keys("name file verdict total differing largest first=place got recorded exact")

    name: str
    file: str
    total: int
    differing: int = 0
    largest: float = 0.0
    first: tuple[int, ...] = ()
    got: Any = None
    recorded: Any = None
    exact: float | None = None
    verdict: Verdict = "equal"
    why: str = ""

    @property
    def place(self) -> tuple[int, ...] | None:
        """The index of the first element that differs."""
        return self.first if self.differing else None


def compare(name: str, file: str, got: Array, want: Array, tolerance: Tolerance) -> ComparedOutput:
    """One output and its record, which have one type and shape."""
    found = difference(got, want, tolerance)
    if found.equal:
        return ComparedOutput(name, file, found.total, largest=found.largest)
    first = found.first
    return ComparedOutput(
        name,
        file,
        found.total,
        found.differing,
        found.largest,
        first,
        plain(got[first]),
        plain(want[first]),
        None,
        "differs",
    )


def classified(
    c: ComparedOutput, model: Model, feeds: Mapping[str, Array], got: Array, want: Array, tolerance: Tolerance
) -> ComparedOutput:
    """With the verdict over the elements that differ, from the exact values that their node rounds."""
    node = model.producers.get(c.name)
    exact = _exact(model, node, feeds) if node is not None else None
    if node is None or exact is None or exact.shape != got.shape:
        why = f"not classified: the value before rounding is not known for {node.op}" if node else "not classified"
        return replace(c, verdict="unclassified", why=f"{why}.")
    bad = np.asarray(distances(got, want) > tolerance.lsb, bool)
    near = ties(exact[bad], got[bad], want[bad])
    share = f"{near} of {c.differing} differing elements"
    if near == c.differing:
        why = f"all {c.differing} differing elements are within {NEAR:g} LSB of a tie: an arithmetic choice."
        return replace(c, exact=float(exact[c.first]), verdict="tie", why=why)
    why = f"{share} are within {NEAR:g} LSB of a tie; the others are an error here, or of a node before {node.label}."
    return replace(c, exact=float(exact[c.first]), verdict="error", why=why)


def _exact(model: Model, node: Node, feeds: Mapping[str, Array]) -> Array | None:
    """The exact values that the node rounds; its inputs are computed by the reference kernels."""
    names = [n for n in node.inputs if n]
    try:
        values = Session(model, backend="reference").values(feeds, names)
    except QrunError:
        return None
    return before_rounding(node, [values[n] if n else None for n in node.inputs])
