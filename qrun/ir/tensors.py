"""TensorProto to a read-only numpy array, and SparseTensorProto to the equivalent dense one, after checking that dims,
type and data agree; external data is read by external.py."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.stored import Part, StoredArray
from qrun.errors import ModelError
from qrun.ir.external import External
from qrun.ir.messages import TensorProto
from qrun.ir.model import Array
from qrun.ir.types import DTYPES, PACKED_BITS, is_extension, shape_text, type_name

if TYPE_CHECKING:
    import onnx

_FIELDS: dict[int, str] = {
    **dict.fromkeys((1, 14), "float_data"),
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28), "int32_data"),
    7: "int64_data",
    **dict.fromkeys((11, 15), "double_data"),
    **dict.fromkeys((12, 13), "uint64_data"),
    8: "string_data",
}
_BITS = {10: 16, 16: 16, **dict.fromkeys((17, 18, 19, 20, 24), 8), **dict.fromkeys((27, 28), 6)}
"""For types whose elements are stored as their bits, each in one number of int32_data: the number of bits."""
_TYPED = tuple(dict.fromkeys(_FIELDS.values()))


def bad_tensor(tensor: str, expected: str, got: str) -> ModelError:
    """The QR103 error of a tensor whose data contradicts its type or shape."""
    what = f"tensor {tensor!r} contradicts itself"
    facts = [("expected", expected), ("got", got)]
    fixes = ["export the model again; the file is damaged or was written by hand"]
    return ModelError("QR103", what, where=[f"tensor {tensor}"], facts=facts, fixes=fixes)


def stored_bytes(number: int, count: int) -> int:
    """Bytes that `count` elements of ONNX type `number` take in raw or external data."""
    bits = PACKED_BITS.get(number)
    return count * DTYPES[number].itemsize if bits is None else -(-count * bits // 8)


def to_part(tensor: onnx.TensorProto, external: External) -> Part:
    """As `to_array`; a large tensor in a file of external data, stored element by element, stays there."""
    number = tensor.data_type
    plain = sys.byteorder == "little" and number not in PACKED_BITS and number not in (8, 9)
    if plain and tensor.data_location == TensorProto.EXTERNAL and not _data_fields(tensor):
        name, dims = _check_dims(tensor, "")
        later = external.read_later(*_place(tensor, name, stored_bytes(number, math.prod(dims))))
        if later is not None:
            return StoredArray(DTYPES[number], dims, later)
    return to_array(tensor, external)


def to_array(tensor: onnx.TensorProto, external: External, where: str = "") -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor as a read-only array of its own element type, one element per array item.

    Raises ModelError if dims, type and data contradict each other or external data cannot be read.
    """
    name, dims = _check_dims(tensor, where)
    number, count, filled = tensor.data_type, math.prod(dims), _data_fields(tensor)
    if len(filled) > 1:
        raise bad_tensor(name, "data in one field", " and ".join(filled))
    if number == 8:
        array: np.ndarray[Any, np.dtype[Any]] = _strings(tensor, name, count)
    elif tensor.data_location == TensorProto.EXTERNAL:
        array = _decode(number, external.read(*_place(tensor, name, stored_bytes(number, count))), count)
    elif tensor.HasField("raw_data"):
        data = tensor.raw_data
        raw = np.frombuffer(external.payloads.get(data, data), np.uint8)
        _expect(name, dims, number, "bytes", stored_bytes(number, count), raw.size)
        array = _decode(number, raw, count)
    else:
        array = _decode_fields(tensor, name, dims, number, count)
    array = array.reshape(dims)
    owner: Any = array
    while isinstance(owner, np.ndarray):  # also its memory: this marks weights for a run
        owner.flags.writeable = False
        owner = owner.base
    return array


def _check_dims(tensor: onnx.TensorProto, where: str) -> tuple[str, tuple[int, ...]]:
    """The name and dims of a tensor, after checking that an array can have these dims."""
    name = tensor.name or where or "(unnamed)"
    number, dims = tensor.data_type, tuple(tensor.dims)
    if number not in DTYPES:
        raise bad_tensor(name, "an element type of onnx.TensorProto.DataType", str(number))
    if any(d < 0 for d in dims):
        raise bad_tensor(name, "dims of 0 or more", shape_text(dims))
    if len(dims) > 64:
        raise bad_tensor(name, "at most 64 dims", str(len(dims)))
    if math.prod(d or 1 for d in dims) * DTYPES[number].itemsize >= 2**63:  # numpy asks that of empty arrays too
        raise bad_tensor(name, "axes that span less than 2**63 bytes, also where one of them is 0", shape_text(dims))
    return name, dims


def _data_fields(tensor: onnx.TensorProto) -> list[str]:
    """The names of the fields that have data."""
    filled = [field for field in _TYPED if getattr(tensor, field)]
    # getattr would copy the bytes of raw_data
    return ["raw_data", *filled] if filled and tensor.HasField("raw_data") else filled


def _expect(name: str, dims: tuple[int, ...], number: int, unit: str, wanted: int, got: int) -> None:
    """Raise ModelError unless a tensor has the wanted number of items."""
    if wanted != got:
        claim = f"{wanted} {unit} for {type_name(DTYPES[number])} {shape_text(dims)}"
        raise bad_tensor(name, claim, f"{got} {unit}")


def _strings(tensor: onnx.TensorProto, name: str, count: int) -> np.ndarray[Any, np.dtype[Any]]:
    """The strings of a tensor."""
    _expect(name, tuple(tensor.dims), 8, "strings", count, len(tensor.string_data))
    array = np.empty(count, object)
    array[:] = [item.decode("utf-8", "replace") for item in tensor.string_data]
    return array


def _place(tensor: onnx.TensorProto, name: str, nbytes: int) -> tuple[str, str, int, int]:
    """File, name, first byte and number of bytes, as `External.read` takes them."""
    info = {entry.key: entry.value for entry in tensor.external_data}
    location = info.get("location", "")
    if any(isinstance(item, bytes) for pair in info.items() for item in pair):
        raise bad_tensor(name, "UTF-8 text in external_data", repr(info)[:60])
    try:
        offset = int(info.get("offset") or 0)
        length = int(info.get("length") or nbytes)
    except ValueError:
        raise bad_tensor(name, "whole numbers for offset and length", str(info)) from None
    if length != nbytes:
        raise bad_tensor(name, f"length {nbytes} in external_data", str(length))
    return location, name, offset, length


def _decode(number: int, raw: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, np.dtype[Any]]:
    """The elements of raw bytes; `number` is ONNX's number of the type."""
    bits = PACKED_BITS.get(number)
    if bits is None:
        dtype = DTYPES[number]
        if number == 9:
            return np.asarray(raw != 0)
        if raw.ctypes.data % dtype.alignment:
            raw = raw.copy()
        little = raw.view(dtype if is_extension(dtype) else dtype.newbyteorder("<"))
        return little.view(dtype) if little.dtype == dtype else little.astype(dtype)
    return _unpack(np.asarray(raw), bits, count).view(np.uint8).astype(np.uint8).view(DTYPES[number])


def _unpack(raw: np.ndarray[Any, Any], bits: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Elements of `bits` bits, first element in the lowest bits, sign-extended by the dtype itself."""
    if bits == 6:
        stream = np.unpackbits(raw, bitorder="little")[: count * 6].reshape(count, 6)
        return np.packbits(stream, axis=1, bitorder="little").reshape(count)
    per = 8 // bits
    shifts = np.arange(per, dtype=np.uint8) * np.uint8(bits)
    fields = (raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(fields.reshape(-1)[:count], np.uint8)


def _decode_fields(
    tensor: onnx.TensorProto, name: str, dims: tuple[int, ...], number: int, count: int
) -> np.ndarray[Any, np.dtype[Any]]:
    """The elements of a tensor that are stored in a typed field."""
    values = getattr(tensor, _FIELDS[number])
    dtype = DTYPES[number]
    if PACKED_BITS.get(number, 6) < 6:
        nbytes = stored_bytes(number, count)
        _expect(name, dims, number, "packed bytes", nbytes, len(values))
        return _decode(number, _within(name, number, np.array(values, np.int64), 0, 255).astype(np.uint8), count)
    if number in (14, 15):
        _expect(name, dims, number, "numbers", 2 * count, len(values))
        return np.array(values, np.float64).view(np.complex128).astype(dtype)
    _expect(name, dims, number, "numbers", count, len(values))
    if number in _BITS:
        bits = _within(name, number, np.array(values, np.int64), 0, 2 ** _BITS[number] - 1)
        return bits.astype(f"u{dtype.itemsize}").view(dtype)
    if number in (2, 3, 4, 5, 12):
        ends = np.iinfo(dtype)
        wide = np.array(values, np.uint64 if number == 12 else np.int64)
        return _within(name, number, wide, int(ends.min), int(ends.max)).astype(dtype)
    return np.array(values, np.int64 if number in (6, 9) else None).astype(dtype)


def _within(
    name: str, number: int, values: np.ndarray[Any, np.dtype[Any]], least: int, most: int
) -> np.ndarray[Any, np.dtype[Any]]:
    """The values, after checking that the element type has all of them."""
    if values.size and not least <= (low := int(values.min())) <= (high := int(values.max())) <= most:
        got = f"{low if low < least else high}"
        raise bad_tensor(name, f"{type_name(DTYPES[number])} stored as numbers from {least} to {most}", got)
    return values


def to_dense(sparse: onnx.SparseTensorProto, external: External, where: str = "") -> Array:
    """A read-only array: the values at their indices, and zeros (for strings: empty ones) elsewhere.

    Raises ModelError if dims, values and indices contradict each other, MemoryLimitError if the array would not fit in
    memory. Source: ONNX IR, SparseTensorProto. Indices are int64: [NNZ], counted through the whole tensor, or
    [NNZ,rank].
    """
    name = sparse.values.name or where or "(unnamed)"
    dims = tuple(sparse.dims)
    if not dims or any(d < 0 for d in dims) or len(dims) > 64:
        raise bad_tensor(name, "1 to 64 dims of 0 or more", shape_text(dims))
    values = to_array(sparse.values, external, where)
    if values.ndim != 1:
        raise bad_tensor(name, "values of shape [NNZ]", shape_text(values.shape))
    made = external.zeros(name, dims, values.dtype)
    made.reshape(-1)[_places(sparse, name, dims, values.size, external)] = values
    made.flags.writeable = False
    return made


def _places(sparse: onnx.SparseTensorProto, name: str, dims: tuple[int, ...], count: int, external: External) -> Array:
    """The place of each value in the flattened tensor."""
    if not count and not sparse.indices.data_type:
        return np.zeros(0, np.int64)
    indices = to_array(sparse.indices, external, f"indices of {name}")
    if indices.dtype != np.int64:
        raise bad_tensor(name, "indices of int64", type_name(indices.dtype))
    if indices.shape == (count,):
        _in_range(name, indices, math.prod(dims))
        places = indices
    elif indices.shape == (count, len(dims)):
        for axis, size in enumerate(dims):
            _in_range(name, indices[:, axis], size, f" along axis {axis}")
        # np.ravel_multi_index takes 32 axes at most; no product overflows, as the tensor fits in memory.
        places = indices @ np.array([math.prod(dims[axis + 1 :]) for axis in range(len(dims))], np.int64)
    else:
        wanted = f"indices of shape [{count}] or [{count},{len(dims)}]"
        raise bad_tensor(name, wanted, shape_text(indices.shape))
    ordered = np.sort(places)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.size:
        raise bad_tensor(name, "one value for each index", f"two for element {_text(int(again[0]), dims)}")
    return np.asarray(places)


def _in_range(name: str, indices: Array, size: int, along: str = "") -> None:
    """Raise ModelError for indices outside 0..size - 1."""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        bad = int(indices.min() if indices.min() < 0 else indices.max())
        expected = f"indices from 0 to {size - 1}{along}" if size else f"no indices: no elements{along}"
        raise bad_tensor(name, expected, str(bad))


def _text(flat_index: int, dims: tuple[int, ...]) -> str:
    """A flat index as an index per axis, in words."""
    index: list[int] = []
    for size in reversed(dims):
        flat_index, along = divmod(flat_index, size)
        index.insert(0, along)
    return shape_text(tuple(index))
