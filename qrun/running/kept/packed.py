"""Plain values and arrays as one block of bytes that can be mapped into memory.

    16 bytes        the length of the index, and of the padding after it
    index           Python's own form of constants (marshal): numbers, texts, tuples, dicts; for each array its type,
                    shape, place
    arrays          each on a boundary of 64 bytes of the file

Reading makes values and calls nothing; marshal is for bytes that were checked, which is what the cache does.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from qrun.declare.digest import Bytes
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.types import ONNX_NAMES
from qrun.native.machine.cache import HEAD

TYPES = ("inputs", "outputs", "defaults")
"""The attributes of a model that are tuples of types."""
_LINE = 64
_FORMAT = 4
_TYPES = {dtype.name: dtype for dtype in ONNX_NAMES if not dtype.hasobject}
_NAMED = {dtype: name for name, dtype in _TYPES.items()}
"""Names by type: numpy builds a type's name on each access, which takes longer than storing a node."""


class Unstorable(Exception):
    """A value that has no such form; the text says which."""


class Bundle:
    """The arrays of an index, which names them by number; each array is stored once."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._numbers: dict[int, int] = {}

    def array(self, array: Array) -> int:
        """The number of an array. Raises Unstorable for elements that are objects."""
        found = self._numbers.get(id(array))
        if found is None:
            type_named(array.dtype)
            found = self._numbers[id(array)] = len(self._arrays)
            self._arrays.append(array)
        return found

    def parts(self, index: Any) -> list[Bytes]:
        """The bytes to store, in pieces."""
        position, places = 0, []
        for array in self._arrays:
            places.append((_NAMED[array.dtype], array.shape, position))
            position += -(-array.nbytes // _LINE) * _LINE
        try:
            head = marshal.dumps((index, tuple(places)), _FORMAT)
        except ValueError as error:
            raise Unstorable(str(error)) from None
        rest = -(HEAD + 16 + len(head)) % _LINE
        parts: list[Bytes] = [len(head).to_bytes(8, "little") + rest.to_bytes(8, "little"), head, bytes(rest)]
        for array in self._arrays:
            parts += [_bytes(array), bytes(-array.nbytes % _LINE)]
        return parts


def unpack(body: memoryview) -> tuple[Any, Sequence[Array]]:
    """The index and the arrays, which are read-only and lie in the memory of `body`."""
    size, rest = (int.from_bytes(body[at : at + 8], "little") for at in (0, 8))
    index, places = marshal.loads(body[16 : 16 + size])
    data = body[16 + size + rest :]
    arrays = []
    for name, shape, position in places:
        dtype = _TYPES[name]
        piece = data[position : position + prod(shape) * dtype.itemsize]
        array = np.frombuffer(piece, np.uint8).view(dtype).reshape(shape) if piece else np.empty(shape, dtype)
        array.flags.writeable = False
        arrays.append(array)
    return index, arrays


def _bytes(array: Array) -> memoryview:
    """The bytes of an array."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def type_named(dtype: np.dtype[Any]) -> str:
    """The name of an element type. Raises Unstorable for one that has none."""
    name = _NAMED.get(dtype)
    if name is None:
        raise Unstorable(f"elements of {dtype}")
    return name


def type_of(name: str) -> np.dtype[Any]:
    """The element type of a stored name."""
    return _TYPES[name]


def pack_type(value: TensorType) -> tuple[Any, ...]:
    """A tensor type as a tuple of plain values."""
    fields = value.name, value.dtype and value.dtype.name, value.shape, value.kind
    if value.kind == "tensor":
        return fields
    return (*fields, value.element and pack_type(value.element), value.key and value.key.name)


def unpack_type(fields: Sequence[Any]) -> TensorType:
    """A tensor type from its tuple."""
    name, dtype, shape, kind, *more = fields
    found = None if dtype is None else np.dtype(dtype)
    if not more:
        return TensorType(name, found, shape, kind)
    element, key = more
    inner, keys = element and unpack_type(element), key and np.dtype(key)
    return TensorType(name, found, shape, kind, inner or None, keys or None)


def pack_node(node: Node, bundle: Bundle) -> tuple[Any, ...]:
    """A node as plain values. Raises Unstorable."""
    fields = node.index, node.name, node.domain, node.op_type, node.version, node.inputs, node.outputs
    return (*fields, pack_mapping(node.attributes, bundle))


def unpack_node(fields: Sequence[Any], arrays: Sequence[Array]) -> Node:
    """A node from its tuple."""
    return Node(*(*fields[:-1], unpack_mapping(fields[-1], arrays)))


def pack_mapping(values: Mapping[str, Any], bundle: Bundle) -> dict[str, Any]:
    """Attributes of a node. Raises Unstorable."""
    return {name: _pack(value, bundle) for name, value in values.items()}


def _pack(value: Any, bundle: Bundle) -> Any:
    """An attribute as plain values; its arrays go to the bundle. Raises Unstorable for other objects."""
    if isinstance(value, np.ndarray):
        return frozenset((bundle.array(value),))
    if isinstance(value, tuple):
        return tuple(_pack(part, bundle) for part in value)
    if isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, Model):
        return _pack_graph(value, bundle)
    raise Unstorable(f"a {type(value).__name__}")


def unpack_mapping(values: Mapping[str, Any], arrays: Sequence[Array]) -> dict[str, Any]:
    """A mapping of attributes from plain values."""
    return {name: _unpack(value, arrays) for name, value in values.items()}


def _unpack(value: Any, arrays: Sequence[Array]) -> Any:
    """An attribute from plain values."""
    if isinstance(value, frozenset):
        (number,) = value
        return arrays[number]
    if isinstance(value, dict):
        return _unpack_graph(value, arrays)
    return tuple(_unpack(part, arrays) for part in value) if isinstance(value, tuple) else value


def _pack_graph(graph: Model, bundle: Bundle) -> dict[str, Any]:
    """A graph inside a node; no other attribute is a dict."""
    return {
        "name": graph.name,
        "nodes": tuple(pack_node(node, bundle) for node in graph.nodes),
        "constants": {name: bundle.array(array) for name, array in graph.constants.items()},
        "opsets": dict(graph.opsets),
        "types": tuple(map(pack_type, graph.types.values())),
        "was_sorted": graph.was_sorted,
        **{kind: tuple(map(pack_type, getattr(graph, kind))) for kind in TYPES},
    }


def _unpack_graph(fields: Mapping[str, Any], arrays: Sequence[Array]) -> Model:
    """A graph from its mapping."""
    kinds: Mapping[str, Any] = {kind: tuple(map(unpack_type, fields[kind])) for kind in TYPES}
    return Model(
        name=fields["name"],
        nodes=tuple(unpack_node(node, arrays) for node in fields["nodes"]),
        constants={name: arrays[number] for name, number in fields["constants"].items()},
        opsets=fields["opsets"],
        types={packed[0]: unpack_type(packed) for packed in fields["types"]},
        was_sorted=fields["was_sorted"],
        **kinds,
    )
