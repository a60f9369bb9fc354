"""A folder of onnxruntime-genai: its genai_config.json names the file of the decoder, its inputs and its outputs.

Source: github.com/microsoft/onnxruntime-genai, src/config.cpp. The file is read without trusting it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qrun.declare.frozen import frozen
from qrun.errors import ModelError
from qrun.ir.external import open_regular

GENAI = "genai_config.json"
_LARGEST = 1 << 20
"""The most bytes of such a file; those of large models have about 4,000."""
_NAMES = 10_000
"""The most characters of a name."""
_MISSING: Any = object()


@frozen
class GenaiConfig:
    """What the file says. file: the decoder's. inputs, outputs: names in the model by their role, such as ``input_ids``
    or ``past_key_names``, with ``%d`` for the number of the layer. words: the size of the vocabulary; context: the most
    tokens; None: not stated."""

    file: Path
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    words: int | None
    context: int | None


def read_config(folder: Path) -> GenaiConfig:
    """Read the folder's file. Raises ModelError if it is no such file, or names a file outside of the folder."""
    path = folder / GENAI
    model = _object(path, _parse(path), "model")
    decoder = _object(path, model, "model.decoder")
    name = decoder.get("filename")
    if not isinstance(name, str) or not 0 < len(name) < _NAMES or "\0" in name:
        raise _bad(path, "model.decoder.filename: the name of an .onnx file", _shown(decoder, "filename"))
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise _bad(path, "model.decoder.filename: a file in this folder", repr(name)[:80])
    sizes = [_size(path, model, key) for key in ("vocab_size", "context_length")]
    return GenaiConfig(folder / name, _names(path, decoder, "inputs"), _names(path, decoder, "outputs"), *sizes)


def _parse(path: Path) -> Any:
    import json

    try:
        with open_regular(path) as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise _bad(path, "a file that can be read", error.strerror or str(error)) from None
    if len(data) > _LARGEST:
        raise _bad(path, f"at most {_LARGEST:,} bytes", "more")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "JSON", str(error)[:80]) from None


def _object(path: Path, inside: Any, place: str) -> dict[str, Any]:
    """The object at this place, whose last part is its key in `inside`."""
    key = place.rpartition(".")[2]
    found = inside.get(key) if isinstance(inside, dict) else None
    if not isinstance(found, dict):
        got = _shown(inside, key) if isinstance(inside, dict) else "no object"
        raise _bad(path, f"{place}: an object", got)
    return found


def _names(path: Path, decoder: Mapping[str, Any], key: str) -> dict[str, str]:
    """The names under ``inputs`` or ``outputs``; {} if there are none. A name has at most one ``%d``."""
    if key not in decoder:
        return {}
    found = _object(path, decoder, f"model.decoder.{key}")
    for role, name in found.items():
        if (
            not isinstance(name, str)
            or len(name) > _NAMES
            or name.count("%") != name.count("%d")
            or name.count("%") > 1
        ):
            expected = f"model.decoder.{key}.{role}: a name, with one %d for the layer if there are several"
            raise _bad(path, expected[:200], _shown(found, role))
    return found


def _size(path: Path, model: Mapping[str, Any], key: str) -> int | None:
    found = model.get(key)
    if found is not None and not (type(found) is int and 0 < found < 2**31):
        raise _bad(path, f"model.{key}: a whole number above 0", _shown(model, key))
    return found


def _shown(inside: Mapping[str, Any], key: str) -> str:
    found = inside.get(key, _MISSING)
    return "nothing" if found is _MISSING else repr(found)[:80]


def _bad(path: Path, expected: str, got: str) -> ModelError:
    return ModelError(
        "QR101",
        f"{str(path)!r} does not describe a decoder",
        where=[str(path)],
        facts=[("expected", expected), ("got", got)],
        fixes=["name the .onnx file in place of the folder", "export the folder again with onnxruntime-genai"],
    )
