"""The records of an export: layers, their parameters and their vectors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.exporting.narrow import is_narrow, pack
from qrun.ir import Array, Node

NCHW, NHWC = "nchw", "nhwc"
"""Values of --layout."""


class NotExported(Exception):
    """Raised where a node has no integers to hand over; the text says why."""


@frozen
class CodeScale:
    """Scale and zero point of a tensor of codes. axis: along which there are several; None for one."""

    scale: Array
    zero: Array
    axis: int | None = None

    def fields(self) -> dict[str, Any]:
        """For manifest.json; a float32 scale is written so that it reads back exactly."""
        zero = [int(value) for value in self.zero.ravel()]
        return {"scale": [float(value) for value in self.scale.ravel()], "zero_point": zero, "axis": self.axis}


@frozen
class LayerTensor:
    """An array of a layer, in the layout in which it is written.

    role:    ``weights``, ``bias``, ``multiplier``, ``input_0``, ``accumulators``, ``output``, ...
    vector:  whether it has a leading axis of samples. tensor: the model's tensor, "" for a number that qrun derives.
    layout:  letters of the axes, such as ``NHWC`` or ``OHWI``; "" where there is nothing to choose.
    """

    role: str
    array: Array
    vector: bool = False
    tensor: str = ""
    layout: str = ""
    quantization: CodeScale | None = None

    @property
    def words(self) -> Array:
        """The array as the integers that are written: 4-bit numbers packed, floats and booleans by their bits."""
        if is_narrow(self.array.dtype):
            return pack(self.array)
        if self.array.dtype.kind in "iu":
            return self.array
        return np.ascontiguousarray(self.array).view(f"u{self.array.dtype.itemsize}")


@frozen
class Rescale:
    """How integers become integers of another scale.

    rule:  ``shift``, value * multiplier * 2^left / 2^right, rounded once; ``high half``, the product rounded at 31 bits
           and then at the shift; ``ratio``, value * multiplier / divisor, rounded once.
    ties:  a key of qrun.arithmetics.family.TIES. multiplier to divisor: int64, one number or one for each channel.
    """

    rule: str
    ties: str
    multiplier: Array
    left: Array
    right: Array
    divisor: Array

    @classmethod
    def ratio(cls, multiplier: int, divisor: int) -> Rescale:
        """The exact quotient, ties to even."""
        none = np.zeros(1, np.int64)
        return cls("ratio", "even", np.array([multiplier], np.int64), none, none, np.array([divisor], np.int64))


@frozen
class Layer:
    """An integer operator with everything that recomputes it.

    kind:       the reference that computes it: ``conv``, ``matmul``, ``add``, ``multiply``, ``concat``, ``average``,
                ``maximum``, ``clip`` or ``table``.
    numbers:    its geometry: integers by name. attributes: those of the node.
    arithmetic: the family, ``exact``, ``table``, or "" where nothing is rounded. deviation: the largest difference from
                the exact codes for any input, None if it is not known. formula: what the layer computes.
    rescales:   by name; their arrays are among the tensors.
    """

    node: Node
    kind: str
    numbers: Mapping[str, int]
    tensors: tuple[LayerTensor, ...]
    arithmetic: str = ""
    deviation: int | None = None
    formula: str = ""
    rescales: Mapping[str, Rescale] = MappingProxyType({})

    def find(self, role: str) -> LayerTensor | None:
        """The tensor of a role."""
        return next((each for each in self.tensors if each.role == role), None)

    def get(self, role: str) -> LayerTensor:
        """The tensor of a role, which the layer has."""
        found = self.find(role)
        assert found is not None, role
        return found


@frozen
class RemainingNode:
    """A node that is not exported, and why."""

    node: Node
    reason: str
