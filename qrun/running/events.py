"""What happened at the nodes of a run: when and where each ran, what it read and made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Node
from qrun.ops import Observation
from qrun.ops.lowering.kernel import NativeSection


@frozen
class TensorInfo:
    """Name, element type and shape of a tensor that a node read or wrote."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@frozen
class NodeEvent:
    """What happened at one node: when it started and how long it took (ns), what it read and wrote, its multiply-adds.

    node:     what ran; in a rewritten model it may stand for a `group` of the model's nodes (their indices, `index` is
              that of the one it is named after).
    backend:  ``reference``, ``native`` or ``onnx.reference``, which runs what qrun has no kernel for; why: the reason
              why it is not ``native`` in a session that is.
    sections: the parts of a native kernel.
    step:     the indices of all nodes that ran as one step of a native program with this one,
              where the time is that of all.
    helpers:  the times in which other threads worked on the node: the thread's number from 1, start and duration (ns).
    """

    index: int
    start_ns: int
    duration_ns: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    macs: int
    backend: str
    observations: tuple[Observation, ...] = ()
    why: str = ""
    sections: tuple[NativeSection, ...] = ()
    group: tuple[int, ...] = ()
    node: Node | None = None
    helpers: tuple[tuple[int, int, int], ...] = ()
    step: tuple[int, ...] = ()

    def at(
        self,
        start_ns: int,
        duration_ns: int,
        helpers: Sequence[tuple[int, int, int]] = (),
        step: tuple[int, ...] = (),
    ) -> NodeEvent:
        """This event with other times, without observations."""
        return NodeEvent(
            self.index, start_ns, duration_ns, self.inputs, self.outputs, self.macs, self.backend, (), self.why,
            self.sections, self.group, self.node, tuple(helpers), step,
        )  # fmt: skip


class LaterEvents(Sequence[NodeEvent]):
    """The events of a run, made when somebody looks at one of them; how many there are is known before."""

    @abstractmethod
    def made(self) -> tuple[NodeEvent, ...]:
        """All of them; called once."""

    @cached_property
    def _events(self) -> tuple[NodeEvent, ...]:
        return self.made()

    def __iter__(self) -> Iterator[NodeEvent]:
        return iter(self._events)

    @overload
    def __getitem__(self, at: int) -> NodeEvent: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[NodeEvent, ...]: ...

    def __getitem__(self, at: int | slice) -> NodeEvent | tuple[NodeEvent, ...]:
        return self._events[at]
