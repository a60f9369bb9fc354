"""Tensors, sequences, optional values and maps in .pb files (one message each), as in the test_data_set folders of
ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from qrun.errors import CallError, ModelError
from qrun.ir.compound import Compound, empty_optional, sequence, wrap_value
from qrun.ir.external import External, read_regular
from qrun.ir.messages import TensorProto
from qrun.ir.model import Array, TensorType
from qrun.ir.tensors import to_array
from qrun.ir.types import MAP, NUMBERS, SEQUENCE
from qrun.memory import Budget

if TYPE_CHECKING:
    import onnx

_PROTOS = {"sequence": "SequenceProto", "optional": "OptionalProto", "map": "MapProto"}
_MAKERS = {"tensor": "array", "sequence": "list", "optional": "optional", "map": "dict"}
"""The functions of onnx.numpy_helper that make a file's message, without `from_`."""


def read_value(path: Path, stated: TensorType | None, budget: Budget) -> tuple[str, Array]:
    """The name and value in a file of a value of this type, as `read_tensor`: a SequenceProto, OptionalProto, MapProto
    or TensorProto."""
    if stated is None or stated.kind not in _PROTOS:
        return read_tensor(path, budget)
    import onnx

    proto, data = getattr(onnx, _PROTOS[stated.kind])(), _bytes(path, budget)
    try:
        proto.ParseFromString(data)
        if len(
            UnknownFieldSet(proto)
        ):  # protobuf reads a tensor as a sequence without elements, and keeps the rest apart
            raise ValueError("fields of another message")
        return proto.name, _value(proto, path, stated, External(path.parent, budget=budget))
    except (DecodeError, RuntimeError, ValueError):
        expected = f"a {type(proto).__name__} of {stated}"
        raise _not_a(stated.kind, path, f"{len(data)} bytes that are not one", expected) from None
    except ModelError as error:
        raise _damage_error(path, error) from None


def _value(proto: Any, path: Path, stated: TensorType, external: External) -> Array:
    """Raises ValueError for what is no sequence of tensors of one type or of maps, no map, and no optional of one."""
    import onnx

    if isinstance(proto, onnx.MapProto):
        return wrap_value(_map(proto, path, external), stated)
    if isinstance(proto, onnx.OptionalProto):
        if proto.elem_type == onnx.OptionalProto.UNDEFINED:
            return empty_optional()
        if proto.elem_type == onnx.OptionalProto.TENSOR:
            return to_array(proto.tensor_value, external, str(path))
        if proto.elem_type == onnx.OptionalProto.SEQUENCE:
            return _value(proto.sequence_value, path, stated.element or stated, external)
        raise ValueError(proto.elem_type)
    if proto.elem_type == onnx.SequenceProto.MAP:
        return wrap_value([_map(row, path, external) for row in proto.map_values], stated)
    if proto.elem_type not in (onnx.SequenceProto.TENSOR, onnx.SequenceProto.UNDEFINED):
        raise ValueError(proto.elem_type)
    found = [to_array(tensor, external, str(path)) for tensor in proto.tensor_values]
    if len({array.dtype for array in found}) > 1:
        raise ValueError("tensors of several types")
    return sequence(found, None if found or stated.element is None else stated.element.dtype)


def read_tensor(path: Path, budget: Budget) -> tuple[str, Array]:
    """The tensor's name (may be empty) and its values.

    Raises CallError if the file is not one tensor, MemoryLimitError if it is larger than the budget allows.
    """
    data, proto = _bytes(path, budget), TensorProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError):
        raise _not_a("tensor", path, f"{len(data)} bytes that are not one") from None
    if not proto.data_type:
        raise _not_a("tensor", path, "a file without element type: empty, a sequence, or an optional")
    try:
        return proto.name, to_array(proto, External(path.parent, budget=budget), str(path))
    except ModelError as error:
        raise _damage_error(path, error) from None


def _bytes(path: Path, budget: Budget) -> bytes:
    """Read a file. Raises CallError."""
    try:
        return read_regular(path, budget)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CallError(
            "QR004", f"cannot read {str(path)!r}: {reason}", where=[str(path)], fixes=["check the path"]
        ) from None


def _damage_error(path: Path, error: ModelError) -> CallError:
    """The QR007 error of a damaged tensor file."""
    where = [str(path), *error.where]
    return CallError(
        "QR007", f"{path}: {error.message}", where=where, facts=error.facts, why=error.why, fixes=error.fixes
    )


def value_bytes(value: Array, name: str) -> bytes:
    """A serialized TensorProto, SequenceProto, OptionalProto or MapProto. Raises CallError as `tensor_bytes`."""
    if not isinstance(value, Compound):
        return tensor_bytes(value, name)
    import onnx

    if value.dtype == MAP:
        keys, rows = value.elements
        made = [_map_proto(keys, row, name) for row in (rows if value.ndim else rows[None])]
        if not value.ndim:
            return made[0].SerializeToString()
        return onnx.SequenceProto(name=name, elem_type=onnx.SequenceProto.MAP, map_values=made).SerializeToString()
    if value.dtype != SEQUENCE:
        return onnx.OptionalProto(name=name).SerializeToString()
    proto = onnx.SequenceProto(name=name, elem_type=onnx.SequenceProto.TENSOR)
    for element in value.elements:
        proto.tensor_values.add().ParseFromString(tensor_bytes(element, ""))
    return proto.SerializeToString()


def _map_proto(keys: Array, values: Array, name: str) -> onnx.MapProto:
    """A map as MapProto."""
    import onnx

    proto = onnx.MapProto(name=name, key_type=NUMBERS[keys.dtype])
    if keys.dtype.kind == "O":
        proto.string_keys.extend(str(key).encode() for key in keys)
    else:
        proto.keys.extend(keys.tolist())
    proto.values.elem_type = onnx.SequenceProto.TENSOR
    for value in values:
        proto.values.tensor_values.add().ParseFromString(tensor_bytes(np.asarray(value, values.dtype), ""))
    return proto


def _map(proto: onnx.MapProto, path: Path, external: External) -> dict[Any, Any]:
    """The map as a dict. Raises ValueError unless it maps numbers or texts to as many scalars."""
    keys: list[Any] = [key.decode("utf-8", "replace") for key in proto.string_keys] or list(proto.keys)
    values = [to_array(tensor, external, str(path)) for tensor in proto.values.tensor_values]
    return dict(zip(keys, (value.reshape(()).item() for value in values), strict=True))


def tensor_bytes(array: Array, name: str) -> bytes:
    """A serialized TensorProto of the array. Raises CallError for an element type that onnx cannot store."""
    import onnx

    try:
        if array.dtype.kind == "O":
            return onnx.helper.make_tensor(
                name,
                onnx.TensorProto.STRING,
                array.shape,
                [str(v).encode() for v in array.ravel()],  # type: ignore[misc]
            ).SerializeToString()
        return onnx.numpy_helper.from_array(np.asarray(array), name).SerializeToString()
    except (ValueError, TypeError, KeyError, DecodeError) as error:
        what = f"{name} is {array.dtype}, which cannot be stored as a TensorProto"
        facts = [("got", f"{NUMBERS.get(array.dtype, '?')}: {error}"[:200])]
        raise CallError("QR008", what, facts=facts, fixes=["-o out.npz"]) from None


def _not_a(kind: str, path: Path, got: str, expected: str = "a TensorProto") -> CallError:
    """The QR007 error of a file with another kind of value."""
    what = f"cannot read {'an' if kind == 'optional' else 'a'} {kind} from {path}"
    fixes = [f"onnx.numpy_helper.from_{_MAKERS[kind]}(x).SerializeToString() makes one"]
    return CallError("QR007", what, where=[str(path)], facts=[("expected", expected), ("got", got)], fixes=fixes)
