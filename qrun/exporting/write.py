"""Writes layers into a folder: manifest.json, and the arrays as raw bytes, $readmemh files, C or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from qrun import __version__
from qrun.exporting.csource import header, main_file, reference_files
from qrun.exporting.export import Exporter, NamedLayer, attribute_fields, base_name
from qrun.exporting.layer import LayerTensor, RemainingNode
from qrun.io.files import write_files
from qrun.ir import Array

MANIFEST = "manifest.json"


class ExportWriter:
    """Writes one export. fields: the manifest, after `save`. nbytes: how much was written."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self.fields: dict[str, Any] = {}
        self.files: list[str] = []
        self.nbytes = 0

    @property
    def layers(self) -> Sequence[Mapping[str, Any]]:
        """The layers that were written."""
        found: Sequence[Mapping[str, Any]] = self.fields.get("layers", ())
        return found

    def save(self, folder: str) -> None:
        """Write all files, or none. Raises CallError if the folder cannot be written."""
        write_files(folder, self._counted(), index=MANIFEST)

    def _counted(self) -> Iterator[tuple[str, bytes]]:
        """The files, which are counted."""
        for name, content in self._contents():
            self.files.append(name)
            self.nbytes += len(content)
            yield name, content

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        """The files of each layer, those of all layers, and the manifest."""
        exporter, layers, values = self._exporter, list[dict[str, Any]](), list[dict[str, Any]]()
        wishes = exporter.wishes
        for entry in exporter.entries():
            layers.append(_layer_fields(entry, wishes.form))
            values.append(
                {each.role: each.array.tolist() for each in entry.layer.tensors} if wishes.form == "json" else {}
            )
            if wishes.form == "c":
                samples = max((len(each.array) for each in entry.layer.tensors if each.vector), default=1)
                yield f"{entry.name}.h", header(entry.layer, entry.name, samples, wishes.layout)
            elif wishes.form != "json":
                for tensor in entry.layer.tensors:
                    data = hex_lines(tensor.array) if wishes.form == "hex" else little(tensor.array)
                    yield _file(entry, tensor, wishes.form), data
        if wishes.form == "c":
            yield from reference_files()
            yield "main.c", main_file([each["identifier"] for each in layers])
        self.fields = manifest(exporter, layers)
        document = self.fields
        if wishes.form == "json":
            document = {**document, "layers": [_with_values(*pair) for pair in zip(layers, values, strict=True)]}
        whole = {"schema": "qrun/export/1.0", "qrun": __version__, **document}
        yield MANIFEST, (json.dumps(whole, indent=None if wishes.form == "json" else 1) + "\n").encode("ascii")


def manifest(exporter: Exporter, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of manifest.json; its schema is qrun/schemas/export-1.0.json."""
    wishes = exporter.wishes
    return {
        "model": base_name(exporter.source),
        "form": wishes.form,
        "layout": wishes.layout,
        "family": wishes.family.name,
        "family_text": wishes.family.describe(),
        "layers": list(layers),
        "remaining": [_remaining_fields(each) for each in exporter.remaining],
    }


def _remaining_fields(each: RemainingNode) -> dict[str, Any]:
    node = each.node
    return {
        "name": node.label,
        "op": node.op,
        "reason": each.reason,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
    }


def _with_values(layer: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A layer with the values of its tensors."""
    return {**layer, "tensors": [{**each, "values": values[each["role"]]} for each in layer["tensors"]]}


def _layer_fields(entry: NamedLayer, form: str) -> dict[str, Any]:
    """A layer in the manifest."""
    layer, node = entry.layer, entry.layer.node
    return {
        "identifier": entry.name,
        "name": node.label,
        "op": node.op,
        "kind": layer.kind,
        "inputs": list(node.inputs),
        "output": node.outputs[0],
        "arithmetic": layer.arithmetic,
        "deviation": layer.deviation,
        "formula": layer.formula,
        "rescales": {name or "output": {"rule": each.rule, "ties": each.ties} for name, each in layer.rescales.items()},
        "numbers": dict(layer.numbers),
        "attributes": attribute_fields(node),
        "tensors": [_tensor_fields(entry, each, form) for each in layer.tensors],
    }


def _tensor_fields(entry: NamedLayer, each: LayerTensor, form: str) -> dict[str, Any]:
    """A tensor in the manifest."""
    return {
        "role": each.role,
        "tensor": each.tensor,
        "file": {"json": MANIFEST, "c": f"{entry.name}.h"}.get(form) or _file(entry, each, form),
        "dtype": each.array.dtype.name,
        "shape": list(each.array.shape),
        "layout": each.layout,
        "samples": each.vector,
        "quantization": each.quantization.fields() if each.quantization else None,
        "sha256": sha256(little(each.array)).hexdigest(),
    }


def _file(entry: NamedLayer, tensor: LayerTensor, form: str) -> str:
    return f"{entry.name}.{tensor.role}.{'hex' if form == 'hex' else 'bin'}"


def little(array: Array) -> bytes:
    """The elements in C order, the lowest byte first."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def hex_lines(array: Array) -> bytes:
    """One element a line in hexadecimal, negative ones in two's complement, as $readmemh reads them."""
    big = np.ascontiguousarray(array).astype(array.dtype.newbyteorder(">"), copy=False)
    digits = np.frombuffer(big.tobytes().hex().encode("ascii"), np.uint8).reshape(-1, 2 * array.dtype.itemsize)
    ends = np.full((len(digits), 1), ord("\n"), np.uint8)
    return np.concatenate([digits, ends], axis=1).tobytes()
