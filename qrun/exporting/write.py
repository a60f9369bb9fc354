"""Writes layers into a folder: manifest.json, and the arrays as raw bytes, $readmemh files, C or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any

import numpy as np

from qrun import __version__
from qrun.exporting.csource import header, main_file, reference_files, tensor_header
from qrun.exporting.export import Exporter, NamedLayer, attribute_fields, base_name
from qrun.exporting.layer import LayerTensor, RemainingNode
from qrun.exporting.narrow import is_narrow
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
        """Write all files, or none; none also where the model has no layer. Raises CallError if the folder cannot be
        written."""
        entries = self._exporter.entries()
        first = next(entries, None)
        if first is not None:
            write_files(folder, self._counted(chain([first], entries)), index=MANIFEST)

    def _counted(self, entries: Iterable[NamedLayer]) -> Iterator[tuple[str, bytes]]:
        """The files, which are counted."""
        for name, content in self._contents(entries):
            self.files.append(name)
            self.nbytes += len(content)
            yield name, content

    def _contents(self, entries: Iterable[NamedLayer]) -> Iterator[tuple[str, bytes]]:
        """The files of each layer, those of all layers, and the manifest."""
        exporter, layers, tensors = self._exporter, list[dict[str, Any]](), list[dict[str, Any]]()
        form, texts = exporter.wishes.form, _Texts()
        for entry in entries:
            layers.append(_layer_fields(entry, form))
            if form == "json":
                texts.add("layers", layers[-1], entry.layer.tensors)
            elif form == "c":
                samples = max((len(each.array) for each in entry.layer.tensors if each.vector), default=1)
                yield f"{entry.name}.h", header(entry.layer, entry.name, samples, exporter.wishes.layout)
            else:
                yield from ((_file(entry.name, each, form), _bytes(each, form)) for each in entry.layer.tensors)
        for chosen in exporter.tensors():
            tensors.append({"identifier": chosen.name, **_tensor_fields(chosen.name, chosen.tensor, form)})
            if form == "json":
                texts.add("tensors", tensors[-1], [chosen.tensor])
            elif form == "c":
                yield f"{chosen.name}.h", tensor_header(chosen.tensor, chosen.name)
            else:
                yield _file(chosen.name, chosen.tensor, form), _bytes(chosen.tensor, form)
        if form == "c":
            yield from reference_files()
            yield "main.c", main_file([each["identifier"] for each in layers])
        self.fields = manifest(exporter, layers, tensors)
        whole = {"schema": "qrun/export/1.0", "qrun": __version__, **self.fields}
        yield (
            MANIFEST,
            texts.document(whole) if form == "json" else (json.dumps(whole, indent=1) + "\n").encode("ascii"),
        )


class _Texts:
    """The layers and tensors of a manifest with values. Each is made text at once, because text is smaller than lists
    of numbers in memory."""

    def __init__(self) -> None:
        self._made: dict[str, list[bytes]] = {"layers": [], "tensors": []}

    def add(self, kind: str, fields: Mapping[str, Any], tensors: Sequence[LayerTensor]) -> None:
        """Add an entry; tensors: those that it lists, or the one that it is."""
        values = [each.array if is_narrow(each.array.dtype) else each.words for each in tensors]
        if kind == "tensors":
            fields = {**fields, "values": values[0].tolist()}
        else:
            shown = zip(fields["tensors"], values, strict=True)
            fields = {**fields, "tensors": [{**each, "values": value.tolist()} for each, value in shown]}
        self._made[kind].append(json.dumps(fields).encode("ascii"))

    def document(self, whole: Mapping[str, Any]) -> bytes:
        """The manifest with these entries in place of those without values."""
        parts = {key: json.dumps(value).encode("ascii") for key, value in whole.items()}
        parts |= {kind: b"[" + b", ".join(made) + b"]" for kind, made in self._made.items()}
        return b"{" + b", ".join(b'"%s": %s' % (key.encode("ascii"), text) for key, text in parts.items()) + b"}\n"


def manifest(
    exporter: Exporter, layers: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The body of manifest.json; its schema is qrun/schemas/export-1.0.json."""
    wishes = exporter.wishes
    return {
        "model": base_name(exporter.source),
        "form": wishes.form,
        "layout": wishes.layout,
        "family": wishes.family.name,
        "family_text": wishes.family.describe(),
        "layers": list(layers),
        "tensors": list(tensors),
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
        "tensors": [_tensor_fields(entry.name, each, form) for each in layer.tensors],
    }


def _tensor_fields(name: str, each: LayerTensor, form: str) -> dict[str, Any]:
    """A tensor in the manifest. name: the identifier of the layer, or its own."""
    return {
        "role": each.role,
        "tensor": each.tensor,
        "file": {"json": MANIFEST, "c": f"{name}.h"}.get(form) or _file(name, each, form),
        "dtype": each.array.dtype.name,
        "shape": list(each.array.shape),
        "layout": each.layout,
        "samples": each.vector,
        "quantization": each.quantization.fields() if each.quantization else None,
        "sha256": sha256(little(each.words)).hexdigest(),
    }


def _file(name: str, tensor: LayerTensor, form: str) -> str:
    return f"{name}.{tensor.role}.{'hex' if form == 'hex' else 'bin'}"


def _bytes(tensor: LayerTensor, form: str) -> bytes:
    """The content of a tensor's own file."""
    if form != "hex":
        return little(tensor.words)
    if is_narrow(tensor.array.dtype):
        return _lines("".join(f"{code & 15:x}" for code in tensor.array.ravel().tolist()), 1)
    return hex_lines(tensor.words)


def little(array: Array) -> bytes:
    """The elements in C order, the lowest byte first."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def hex_lines(array: Array) -> bytes:
    """One element a line in hexadecimal, negative ones in two's complement, as $readmemh reads them."""
    big = np.ascontiguousarray(array).astype(array.dtype.newbyteorder(">"), copy=False)
    return _lines(big.tobytes().hex(), 2 * array.dtype.itemsize)


def _lines(digits: str, width: int) -> bytes:
    """Digits in lines of this width."""
    rows = np.frombuffer(digits.encode("ascii"), np.uint8).reshape(-1, width)
    return np.concatenate([rows, np.full((len(rows), 1), ord("\n"), np.uint8)], axis=1).tobytes()
