"""Tensors in .pb files (one serialized TensorProto each), as in the test_data_set folders of ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from qrun.errors import CallError, ModelError
from qrun.ir.external import External
from qrun.ir.model import Array
from qrun.ir.tensors import to_array
from qrun.ir.types import NUMBERS


def read_tensor(path: Path) -> tuple[str, Array]:
    """The tensor's name (may be empty) and its values. Raises CallError if the file is not one tensor."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CallError(
            "QR004", f"cannot read {str(path)!r}: {reason}", where=[str(path)], fixes=["check the path"]
        ) from None
    proto = onnx.TensorProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError):
        raise _not_a_tensor(path, f"{len(data)} bytes that are not one") from None
    if not proto.data_type:
        raise _not_a_tensor(path, "a file without element type: empty, a sequence, or an optional")
    try:
        return proto.name, to_array(proto, External(path.parent), str(path))
    except ModelError as error:
        where = [str(path), *error.where]
        raise CallError(
            "QR007", f"{path}: {error.message}", where=where, facts=error.facts, why=error.why, fixes=error.fixes
        ) from None


def tensor_bytes(array: Array, name: str) -> bytes:
    """A serialized TensorProto of the array. Raises CallError for an element type that onnx cannot store."""
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
        raise CallError(
            "QR008",
            f"{name} is {array.dtype}, which cannot be stored as a TensorProto",
            facts=[("got", f"{NUMBERS.get(array.dtype, '?')}: {error}"[:200])],
            fixes=["-o out.npz"],
        ) from None


def _not_a_tensor(path: Path, got: str) -> CallError:
    return CallError(
        "QR007",
        f"cannot read a tensor from {path}",
        where=[str(path)],
        facts=[("expected", "a TensorProto"), ("got", got)],
        fixes=["onnx.numpy_helper.from_array(x).SerializeToString() makes one"],
    )
