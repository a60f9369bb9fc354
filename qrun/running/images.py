"""What depends on a model's file alone, kept on disk beside the compiled kernels, so that it is made once.

An image is found by all bytes of the model and its external data, by qrun's sources and the versions of what they stand on,
and by what was asked for. What it holds is as good as made now: it was checked when it was made, and its file is believed
only as those of kernels are (native/machine/cache.py). What cannot be kept is made each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from qrun.ir import Array, Model, Node, TensorType
from qrun.native.machine.cache import ObjectCache, digest
from qrun.ops import Arith
from qrun.passes import Optimized, Refusal
from qrun.running.packed import Bundle, Unstorable, packed_mapping, unpacked, unpacked_mapping

SUFFIX = ".model"
_OTHERS = frozenset(("cli", "report", "comparing", "peers", "__pycache__"))
"""Packages of which nothing that is kept depends on."""


class Images:
    """The images of one model, computed in one way; none are kept of a model that did not come from a file."""

    def __init__(self, store: ObjectCache, model: Model, arith: Arith) -> None:
        self._store, self._model, self._arith = store, model, arith
        self.usable = bool(model.content) and not store.refused

    def optimized(self, keep: frozenset[str], tables: bool, make: Callable[[], Optimized]) -> Optimized:
        """What `make` makes of the model, or made in an earlier process. keep, tables: as `qrun.passes.optimize` takes them."""
        if not self.usable:
            return make()
        key = self._key("optimized", tables, sorted(keep))
        body = self._store.mapped(key, SUFFIX)
        if body is not None:
            return _optimized(self._model, *unpacked(body))
        made = make()
        bundle = Bundle()
        try:
            parts = bundle.parts(_index(self._model, made, bundle))
        except Unstorable:
            return made
        self._store.save_parts(key, parts, SUFFIX)
        return made

    def _key(self, *parts: object) -> str:
        return f"{_version()} {_content(self._model)} {self._arith} {parts!r}"


def _content(model: Model) -> str:
    """A name for the bytes that the model was made from."""
    found = vars(model).get("_content")
    if found is None:
        found = vars(model)["_content"] = digest(*map(_buffer, model.content))
    return str(found)


def _buffer(piece: bytes | Array) -> bytes | memoryview:
    return piece if isinstance(piece, bytes) else memoryview(piece)  # type: ignore[arg-type]


@cache
def _version() -> str:
    """Names all that an image depends on besides the model: sources by size and age, and the versions below them."""
    sources = repr([*_stamps(Path(__file__).parents[1])]).encode()
    onnx = find_spec("onnx")
    age = os.stat(onnx.origin).st_mtime_ns if onnx and onnx.origin else 0
    return f"{digest(sources)} {sys.version} {np.__version__} {ml_dtypes.__version__} {age}"


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Path, size and age of sources."""
    with os.scandir(folder) as found:
        for entry in sorted(found, key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name not in _OTHERS:
                    yield from _stamps(Path(entry.path))
            elif entry.name.endswith((".py", ".txt")):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns


def _index(model: Model, made: Optimized, bundle: Bundle) -> Any:
    """Of an optimized model: what it has that the model has not."""
    if made.model is model:
        return None, dict(made.groups), _refusals(made)
    old, new = model.constants, made.model.constants
    constants = {name: None if old.get(name) is array else bundle.array(array) for name, array in new.items()}
    nodes = tuple(_packed_node(node, bundle) for node in made.model.nodes)
    types = [v for name, v in made.model.types.items() if model.types.get(name) is not v]
    return (
        (nodes, constants, dict(made.model.opsets), tuple(map(_packed_type, types))),
        dict(made.groups),
        _refusals(made),
    )


def _refusals(made: Optimized) -> tuple[tuple[int, str, str], ...]:
    return tuple((refusal.index, refusal.name, refusal.reason) for refusal in made.refused)


def _packed_node(node: Node, bundle: Bundle) -> tuple[Any, ...]:
    fields = node.index, node.name, node.domain, node.op_type, node.version, node.inputs, node.outputs
    return (*fields, packed_mapping(node.attributes, bundle))


def _packed_type(value: TensorType) -> tuple[Any, ...]:
    return value.name, value.dtype and value.dtype.name, value.shape, value.kind


def _optimized(model: Model, index: Any, arrays: Sequence[Array]) -> Optimized:
    changed, groups, refusals = index
    refused = tuple(Refusal(*refusal) for refusal in refusals)
    if changed is None:
        return Optimized(model, groups, refused)
    nodes, constants, opsets, types = changed
    made = replace(
        model,
        nodes=tuple(Node(*(*node[:-1], unpacked_mapping(node[-1], arrays))) for node in nodes),
        constants={name: model.constants[name] if n is None else arrays[n] for name, n in constants.items()},
        opsets=opsets,
        types={**model.types, **{fields[0]: _type(*fields) for fields in types}},
    )
    return Optimized(made, groups, refused)


def _type(name: str, dtype: str | None, shape: Any, kind: str) -> TensorType:
    return TensorType(name, None if dtype is None else np.dtype(dtype), shape, kind)
