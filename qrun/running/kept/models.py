"""Keeps the parsed graph of a model's file, so that later processes import neither onnx nor protobuf.

Large weights are not in it: they are read from the model's file, which is read whole anyway to find the kept graph.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.ir import Array, Model
from qrun.ir.localfunctions import has_library
from qrun.ir.wire import Lifted, lift
from qrun.native.machine.cache import ObjectCache
from qrun.running.engine import cache_directory
from qrun.running.kept import versions
from qrun.running.kept.packed import (
    TYPES,
    Bundle,
    Unstorable,
    pack_node,
    pack_type,
    type_named,
    type_of,
    unpack,
    unpack_node,
    unpack_type,
)

if TYPE_CHECKING:
    import onnx


def load_kept(
    model: str | Path | bytes | onnx.ModelProto, cache: str | os.PathLike[str] | bool = True, *, source: str = ""
) -> Model:
    """The same as `qrun.ir.load.load`; keeps the model for later processes if it is a file.

    cache: as `Session` takes it. Raises what `load` does.
    """
    if not isinstance(model, (str, Path)) or cache is False or has_library():
        return _parse(model, source)
    path = Path(model)
    lifted = lift(path)
    if lifted is None:
        return _parse(path, source)
    store = ObjectCache(cache_directory(cache))
    key = f"{versions.version()} {lifted.content.digest} parsed"
    body = store.map_entry(key, versions.SUFFIX)
    if body is not None:
        return _unpack_model(*unpack(body), lifted, path, source)
    made = _parse(path, source, lifted)
    bundle = Bundle()
    try:
        parts = bundle.parts(_pack_model(made, lifted, bundle))
    except Unstorable:
        return made
    store.save_parts(key, parts, versions.SUFFIX)
    return made


def _parse(model: str | Path | bytes | onnx.ModelProto, source: str, lifted: Lifted | None = None) -> Model:
    """Load a model from its file or protobuf."""
    from qrun.ir.load import load

    return load(model, source=source, lifted=lifted)


def _pack_model(model: Model, lifted: Lifted, bundle: Bundle) -> Any:
    """The model as plain values, without the weights that the file holds as they are. Raises Unstorable."""
    if model.external_files:
        raise Unstorable("external data, which belongs to the content")
    held = {_place(_bytes(payload)): number for number, payload in enumerate(lifted.payloads.values())}

    def constant(array: Array) -> Any:
        number = held.get(_place(array)) if array.flags.c_contiguous else None
        return bundle.array(array) if number is None else (number, type_named(array.dtype), array.shape)

    return (
        (model.name, dict(model.opsets), model.ir_version, model.producer, model.was_sorted),
        tuple(pack_node(node, bundle) for node in model.nodes),
        tuple(tuple(map(pack_type, getattr(model, kind))) for kind in TYPES),
        tuple(map(pack_type, model.types.values())),
        {name: constant(array) for name, array in model.constants.items()},
    )


def _unpack_model(index: Any, arrays: Sequence[Array], lifted: Lifted, path: Path, source: str) -> Model:
    """A model from a cache entry."""
    (name, opsets, ir_version, producer, was_sorted), nodes, kinds, types, constants = index
    payloads = tuple(lifted.payloads.values())

    def constant(found: int | tuple[Any, ...]) -> Array:
        if isinstance(found, int):
            return arrays[found]
        number, dtype, shape = found
        return _bytes(payloads[number]).view(type_of(dtype)).reshape(shape)

    made: Mapping[str, Any] = {kind: tuple(map(unpack_type, values)) for kind, values in zip(TYPES, kinds, strict=True)}
    return Model(
        name=name,
        nodes=tuple(unpack_node(node, arrays) for node in nodes),
        constants={name: constant(found) for name, found in constants.items()},
        opsets=opsets,
        types={fields[0]: unpack_type(fields) for fields in types},
        path=path,
        source=source,
        ir_version=ir_version,
        producer=producer,
        size=lifted.size,
        was_sorted=was_sorted,
        **made,
    ).with_content(lifted.content)


def _bytes(payload: memoryview) -> Array:
    """A payload as an array of bytes."""
    return np.frombuffer(payload, np.uint8)


def _place(array: Array) -> tuple[int, int]:
    """The address of its bytes, and how many they are."""
    return int(array.__array_interface__["data"][0]), array.nbytes
