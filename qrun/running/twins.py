"""Nodes that differ only in the values of their constants: when one of them is lowered for new shapes, the others take
the sizes from its kernel."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops import Observation
from qrun.ops.lowering.kernel import NativeKernel, with_sizes_of

Part = tuple[tuple[int, ...], np.dtype[Any], bytes] | None
Key = tuple[Part, ...]
"""For each input of a node: shape, type and, where it follows from shapes, value; None for a constant."""


@frozen
class _Twin:
    """The first kernel of a node. leader: the first node of its kind. key: the inputs that it was made for.
    observations: those that lowering made in the constants."""

    leader: int
    key: Key
    kernel: NativeKernel
    observations: tuple[Observation, ...]


class Twins:
    """The nodes of one model that were lowered, by index."""

    def __init__(self) -> None:
        self._leaders: dict[Hashable, int] = {}
        self._known: dict[int, _Twin] = {}
        self._seen: dict[int, tuple[Key, bool]] = {}

    def knows(self, index: int) -> bool:
        """Whether the first kernel of this node is known."""
        return index in self._known

    def learn(
        self, index: int, kind: Hashable, key: Key, kernel: NativeKernel, observations: tuple[Observation, ...]
    ) -> None:
        """Remember a node's first kernel, and the observations in its constants. kind: equal for nodes that differ only
        in the values of their constants."""
        self._known[index] = _Twin(self._leaders.setdefault((kind, key), index), key, kernel, observations)

    def leader(self, index: int, key: Key) -> int | None:
        """The index of the node whose sizes this one takes for such inputs; None if there is none."""
        twin = self._known.get(index)
        if twin is None or twin.leader == index:
            return None
        seen, fits = self._seen.get(twin.leader, ((), False))
        if seen != key:
            fits = _of_other_sizes(twin.key, key)
            self._seen[twin.leader] = key, fits
        return twin.leader if fits else None

    def with_leader_sizes(self, index: int, other: NativeKernel) -> tuple[NativeKernel | None, tuple[Observation, ...]]:
        """The node's first kernel with the sizes of its leader's kernel, None if the node must be lowered; and the
        observations in its constants. The leader's lowering has checked the shapes, which are the same here; the
        constants were checked when the first kernel was made."""
        twin = self._known[index]
        return with_sizes_of(twin.kernel, other), twin.observations


def _of_other_sizes(first: Key, other: Key) -> bool:
    """Whether the inputs differ only in sizes of 2 or more: the same types, ranks and sizes of 0 and 1 (which leave
    nothing to do, or broadcast), and no input whose value follows from shapes."""
    for a, b in zip(first, other, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        (shape, dtype, value), (other_shape, other_dtype, other_value) = a, b
        if len(shape) != len(other_shape) or dtype != other_dtype or value or other_value:
            return False
        if any(n != m and (n < 2 or m < 2) for n, m in zip(shape, other_shape, strict=True)):
            return False
    return True
