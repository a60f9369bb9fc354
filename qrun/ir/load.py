"""Loads bytes, a path or a ModelProto into a Model. Raises QrunErrors, never anything else (see `load`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from google.protobuf.message import DecodeError

from qrun.declare.digest import Content
from qrun.errors import CallError, ModelError, QrunError, UnsupportedError, absent, close_matches, some
from qrun.ir import schema
from qrun.ir.external import External, open_regular
from qrun.ir.genai import GENAI, read_config
from qrun.ir.graph import GraphContext, build_graph, refuse_bytes
from qrun.ir.localfunctions import all_nodes, inline_functions, with_library
from qrun.ir.messages import ModelProto
from qrun.ir.model import Model
from qrun.ir.wire import Lifted, lift

if TYPE_CHECKING:
    import onnx

LARGEST = 2**31 - 1
_KEPT = 1 << 16
"""For a model that is in no file, results are cached only from this many bytes on."""
_PIECE = 1 << 24
"""The most bytes that one call reads."""


def load(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    source: str = "",
    lifted: Lifted | None = None,
    spared: bool = False,
) -> Model:
    """Read a model, resolve its operators' versions and order its nodes.

    model:  a path (external data is looked for beside it), a folder of onnxruntime-genai, the bytes of a file, or an
            onnx.ModelProto.
    source: the name in messages of a model that is no path.
    lifted: the file at the path, if it is already read.
    spared: files of external data may be missing; the model names them, and their tensors are 0.

    Raises CallError if there is no such file, ModelError if it cannot be read or contradicts itself, UnsupportedError
    if it uses an opset or feature that qrun does not read, MemoryLimitError if its weights do not fit in memory.
    """
    if isinstance(model, ModelProto):
        return _load_bytes(model, model.SerializeToString() if model.ByteSize() < 2**31 - 1 else b"", source, spared)
    if isinstance(model, bytes):
        return _load_bytes(parse(model, source or "the model"), model, source, spared)
    path = model_file(model)
    lifted = lifted or lift(path)
    if lifted is not None and (proto := _parse(lifted.proto)) is not None:
        return _build(proto, path, source, lifted.size, "", lifted.payloads, lifted.content, spared)
    data = read_file(path)
    digest = "" if path.is_file() else _digest(data)
    return _build(parse(data, str(path)), path, source, len(data), digest, content=Content(data), spared=spared)


def model_file(given: object) -> Path:
    """The path of a model's file: that of its decoder for a folder of onnxruntime-genai. Raises CallError for anything
    that is no path, ModelError for a folder whose description is damaged."""
    if isinstance(given, (str, os.PathLike)):
        if os.path.isfile(os.path.join(given, GENAI)):
            return read_config(Path(given)).file
        return Path(given)
    facts = [("expected", "a path, bytes, or an onnx.ModelProto"), ("got", type(given).__name__)]
    raise CallError("QR005", "not a model", facts=facts)


def _load_bytes(proto: onnx.ModelProto, data: bytes, source: str, spared: bool) -> Model:
    """The model of these bytes, which are in no file. Results for small models are not cached: they are quickly made
    again, and programs that build models build many."""
    digest = _digest(data)
    content = Content(digest.encode()) if len(data) >= _KEPT else None
    return _build(proto, None, source, len(data), digest, content=content, spared=spared)


def _digest(data: bytes) -> str:
    """The SHA-256 of a model's bytes."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


def read_file(path: Path) -> bytes:
    """The bytes of a model file; CallError if there is none, ModelError if there are too many for a protobuf
    message."""
    try:
        with open_regular(path, pipes=True) as stream:
            size = os.fstat(stream.fileno()).st_size
            data = _at_most(stream, LARGEST + 1) if size <= LARGEST else b""
    except (OSError, ValueError) as error:
        raise no_model(str(path), getattr(error, "strerror", None) or str(error)) from None
    if max(size, len(data)) > LARGEST:
        got = f"{size:,} bytes" if size > LARGEST else "more"
        facts = [("expected", f"at most {LARGEST:,} bytes, the limit of a protobuf message"), ("got", got)]
        fixes = ["keep the weights in a file beside it (external data)"]
        raise ModelError("QR101", f"{str(path)!r} is too long for a model", where=[str(path)], facts=facts, fixes=fixes)
    return data


def no_model(given: str, reason: str = "") -> CallError:
    """The error for a path where no model can be read; it says what is there instead, or nearby. reason: why reading
    failed, if it was tried."""
    path = Path(given)
    why, fix = absent(given)
    reason = reason or why
    if os.path.isdir(path):
        reason, fixes = "it is a folder", _models_below(path)
    elif os.path.exists(path):
        fixes = ["check its permissions"] if os.path.isfile(path) else ["copy the model into a file"]
    elif fix:
        fixes = [fix]
    else:
        fixes = _nearby(path)
    return CallError("QR004", f"cannot read {given!r}: {reason}", where=[given], fixes=fixes)


def _models_below(folder: Path) -> list[str]:
    """Fixes that name the models below a folder."""
    found = sorted(folder.glob("*.onnx")) or sorted(folder.glob("*/*.onnx"))
    if not found:
        return ["name a model; the folder has no .onnx file"]
    if len(found) == 1:
        return [f"did you mean {found[0]}?"]
    from shlex import quote

    return [f"name one: {some([str(path) for path in found])}", f"or all: qrun check {quote(str(folder))}"]


def _nearby(path: Path) -> list[str]:
    """Fixes for a path that does not exist: similar names beside its first missing part."""
    lost = next(p for p in (*reversed(path.parents), path) if not os.path.exists(p))
    folder = "the current folder" if lost.parent == Path() else str(lost.parent)
    models = [] if lost != path else sorted(p.name for p in lost.parent.glob("*.onnx"))
    names = {Path(name).stem: name for name in (*sorted(p.name for p in lost.parent.glob("*/")), *models)}
    near = close_matches(lost.stem, names)
    if near:
        found = lost.parent / names[near[0]]
        meant = found / path.relative_to(lost)
        if found.is_dir() and not meant.is_file():
            return _models_below(found)
        return [f"did you mean {meant if found.is_dir() else found}?"]
    return [f"models in {folder}: {some(models)}" if models else f"check the path: {folder} has no {lost.name}"]


def _at_most(stream: IO[bytes], count: int) -> bytes:
    """Up to `count` bytes; memory grows with the bytes read."""
    pieces = []
    while count and (piece := stream.read(min(count, _PIECE))):
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def parse(data: bytes, label: str) -> onnx.ModelProto:
    """The ModelProto in `data`. Raises a ModelError that says what the bytes are instead."""
    proto = _parse(data)
    if proto is None:
        from qrun.ir.diagnose import not_a_model

        raise not_a_model(data, label)
    return proto


def _parse(data: bytes) -> onnx.ModelProto | None:
    """The ModelProto; None if the bytes are none."""
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError):
        return None
    return proto if proto.HasField("graph") else None


def _build(
    proto: onnx.ModelProto,
    path: Path | None,
    source: str,
    size: int,
    digest: str,
    payloads: Mapping[bytes, memoryview] | None = None,
    content: Content | None = None,
    spared: bool = False,
) -> Model:
    """A Model from its ModelProto."""
    label = str(path) if path else source or "the model"
    own, proto = proto, with_library(proto)
    content = content if proto is own else None
    opsets = _opsets(proto, label)
    if proto.functions:
        proto = inline_functions(proto, label)
        opsets = _opsets(proto, label)
    external = External(path.parent if path else None, payloads, spared)
    try:
        graph = build_graph(proto.graph, GraphContext(opsets, external, label))
    except QrunError as error:
        error.where = error.where if label in error.where else (label, *error.where)
        raise
    return Model(
        name=proto.graph.name,
        opsets=opsets,
        path=path,
        source=source,
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        size=size,
        digest=digest,
        external_files=tuple(sorted(external.missing.union(external.files))),
        missing_files=tuple(sorted(external.missing)),
        **graph,
    ).with_content(None if external.missing else content and content + tuple(external.content()))


def _same_in_versions(proto: onnx.ModelProto, domain: str, *opsets: int) -> bool:
    """Whether all nodes of the domain mean the same in these versions of it; false if onnx.defs lacks one of them."""
    bodies = (proto.graph.node, *(function.node for function in proto.functions))
    own = (domain,) if domain else ("", "ai.onnx")
    names = {node.op_type for body in bodies for node in all_nodes(body) if node.domain in own}
    known = [[schema.schema(domain, name, opset) for opset in opsets] for name in names]
    return all(first is not None and first == second for first, second in known)


def _opsets(proto: onnx.ModelProto, label: str) -> dict[str, int]:
    """The imported opset versions by domain. Raises ModelError if one is imported twice with different versions."""
    found: dict[str, int] = {}
    refuse_bytes(label, proto.producer_name, proto.producer_version, *(e.domain for e in proto.opset_import))
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if found.get(domain, entry.version) != entry.version and not _same_in_versions(
            proto, domain, found[domain], entry.version
        ):
            what = f"{label} imports domain {domain or 'ai.onnx'!r} twice"
            facts = [("got", f"versions {found[domain]} and {entry.version}")]
            fixes = ["keep one opset_import entry for each domain"]
            raise ModelError("QR106", what, where=[label], facts=facts, fixes=fixes)
        found[domain] = max(entry.version, found.get(domain, entry.version))
    if "" in found and found[""] not in schema.OPSETS:
        what = f"{label} uses ai.onnx opset {found['']}"
        facts = [("expected", f"opset {schema.OPSETS[0]} to {schema.OPSETS[-1]}"), ("got", str(found[""]))]
        fixes = [f"export the model again for opset {schema.OPSETS[-1]} or lower"]
        raise UnsupportedError("QR106", what, where=[label], facts=facts, fixes=fixes)
    return found
