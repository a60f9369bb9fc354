"""Writes a copy of a model whose nodes carry what qrun found, as metadata that Netron shows beside the attributes."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import onnx

from qrun.converting.proto import has_external_data, save

PREFIX = "qrun."


def annotate(source: str | bytes, target: str, told: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Write the copy; returns the names of the files, with ``TARGET.data`` if the source has external data.

    source: a path, or the bytes of a model that qrun has loaded. told: texts by key (without `PREFIX`), by the first
    output of their node. Keys of an earlier copy are replaced. The IR version stays: metadata of nodes is of IR 10, and
    readers of older files skip it. Raises CallError if a file cannot be written.
    """
    proto = onnx.load(BytesIO(source) if isinstance(source, bytes) else source, load_external_data=False)
    for node in proto.graph.node:
        kept = [each for each in node.metadata_props if not each.key.startswith(PREFIX)]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        first = next(filter(None, node.output), "")
        for key, value in told.get(first, {}).items():
            node.metadata_props.add(key=PREFIX + key, value=value)
    folder = Path() if isinstance(source, bytes) else Path(source).parent
    return save(proto, target, folder, has_external_data(proto), {})
