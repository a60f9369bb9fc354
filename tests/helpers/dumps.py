"""Devices that are qrun but for a planted difference, and what they write: dumps in every form, with what is true."""

from __future__ import annotations

import base64
import io
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qrun
from helpers.small_networks import NETWORKS, Net
from qrun.comparing.dumped import dump_partner
from qrun.comparing.meanings import TensorScales
from qrun.ir import Model

Array = np.ndarray[Any, Any]
MOVES = ("Reshape", "Flatten", "Transpose", "Slice", "Pad", "Concat", "MaxPool")
"""Operators that compute nothing, so that no device gives other results."""


@cache
def quantized(network: str, form: str) -> tuple[Model, Model, Mapping[str, Array]]:
    """A small network, its quantized model (QDQ or QOperator), and inputs that no other test changes."""
    quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime, whose quantizer is used")
    net, output = NETWORKS[network]()
    proto = net.model(output)
    float_model = qrun.load(proto.SerializeToString())

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, net: Net) -> None:
            self.feeds = iter([{"x": net.sample(seed)} for seed in (1, 2)])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.onnx"
        options = {"quant_format": quantization.QuantFormat[form], "per_channel": True}
        quantization.quantize_static(proto, path, Reader(net), **options)
        return float_model, qrun.load(path.read_bytes()), {"x": net.sample(1)}


@dataclass
class Device:
    """What a device computed. values: by ONNX name, in graph order. planted: the tensor that it rounds otherwise."""

    model: Model
    feeds: Mapping[str, Array]
    values: dict[str, Array]
    planted: str

    def affine(self, name: str) -> tuple[float, int]:
        found = TensorScales(self.model, self.feeds).affine(name, self.values[name].dtype)
        return found.scale, int(found.zero)


@dataclass
class Written:
    """A dump, with the ONNX name of each of its tensors."""

    path: Path
    names: dict[str, str] = field(default_factory=dict)


def run_device(model: Model, feeds: Mapping[str, Array], at: int, seed: int = 0, share: float = 0.05) -> Device:
    """Run a model as qrun does, but for one result of codes: a share of its elements is a step off. What follows is
    computed from that."""
    side = dump_partner(model)
    values: dict[str, Array] = dict(feeds)
    rng = np.random.default_rng(seed)
    usual = {n: a for n, a in side.run(feeds).items() if a is not None}
    moved = {n for node in model.nodes if node.op_type in MOVES for n in node.outputs}
    codes = [n for n, array in usual.items() if array.dtype in (np.uint8, np.int8) and n not in moved]
    planted = codes[at % len(codes)]
    for unit in side.units:
        made = {n: np.array(a) for n, a in side.alone(unit, values).items() if a is not None}
        if planted in made:
            array = made[planted].astype(np.int64)
            moved = rng.random(array.shape) < max(share, 1.5 / array.size)
            moved.flat[rng.integers(array.size)] = True
            inward = np.where(array > array.mean(), -1, 1)
            made[planted] = (array + moved * inward).astype(made[planted].dtype)
        values |= {n: a for n, a in made.items() if n in unit.gives}
    return Device(model, feeds, {n: values[n] for n in usual}, planted)


def channels_last(array: Array) -> Array:
    return np.moveaxis(array, 1, -1) if array.ndim > 2 else array


def real(device: Device, name: str) -> Array:
    """The real numbers of a tensor, as float32."""
    array = device.values[name]
    scale, zero = device.affine(name)
    return array if array.dtype.kind == "f" else ((array.astype(np.float64) - zero) * scale).astype(np.float32)


def plain(name: str) -> str:
    return re.sub(r"[^0-9a-zA-Z]", "_", name)


def padded(array: Array, channels: int) -> Array:
    """Channels at the end, filled up with zeros to a multiple of `channels`."""
    last = channels_last(array)
    extra = -last.shape[-1] % channels
    return np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, extra)])


def npz_renamed(device: Device, folder: Path) -> Written:
    """.npz, channels last, int8 where the model has uint8, names that say nothing."""
    done, arrays = Written(folder / "dump.npz"), {}
    for at, (name, array) in enumerate(device.values.items()):
        if array.dtype == np.uint8:
            array = (array.astype(np.int16) - 128).astype(np.int8)
        arrays[f"buffer{at}"] = channels_last(array)
        done.names[f"buffer{at}"] = name
    np.savez(done.path, **arrays)
    return done


def npy_folder(device: Device, folder: Path) -> Written:
    """A folder of .npy files, named as RKNN does, some missing."""
    done = Written(folder / "npy")
    done.path.mkdir()
    for at, (name, array) in enumerate(device.values.items()):
        if at % 3 != 1 or name == device.planted:
            np.save(done.path / f"{plain(name)}.npy", array)
            done.names[plain(name)] = name
    return done


def snpe(device: Device, folder: Path) -> Written:
    """Raw float32 without shapes, dequantized, channels last."""
    done = Written(folder / "output")
    (done.path / "Result_0").mkdir(parents=True)
    for name in device.values:
        data = np.ascontiguousarray(channels_last(real(device, name))).astype("<f4").tobytes()
        (done.path / "Result_0" / f"{plain(name)}.raw").write_bytes(data)
        done.names[plain(name)] = name
    return done


def native_raw(device: Device, folder: Path) -> Written:
    """Raw codes without shapes and types, channels last, names that say nothing."""
    done = Written(folder / "native")
    done.path.mkdir()
    for at, (name, array) in enumerate(device.values.items()):
        (done.path / f"out_{at}.raw").write_bytes(np.ascontiguousarray(channels_last(array)).tobytes())
        done.names[f"out_{at}"] = name
    return done


def tidl(device: Device, folder: Path) -> Written:
    """Traces of TI TIDL: shapes in the names, rows padded."""
    done = Written(folder / "traces")
    done.path.mkdir()
    for at, (name, array) in enumerate(device.values.items()):
        if array.ndim <= 4 and array.dtype.itemsize == 1:
            n, c, h, w = (1,) * (4 - array.ndim) + array.shape
            stem = f"tidl_trace{at:04}_{n:05}_{c:05}_{h:05}x{w:05}"
            rows = np.pad(array.reshape(n, c, h, w), [(0, 0)] * 3 + [(0, 3 if w > 4 else 0)])
            (done.path / f"{stem}.y").write_bytes(rows.tobytes())
            done.names[stem] = name
    return done


def polygraphy(device: Device, folder: Path) -> Written:
    """The JSON of polygraphy run --save-outputs, dequantized."""
    done = Written(folder / "outputs.json")
    outputs = {}
    for name in device.values:
        memory = io.BytesIO()
        np.save(memory, real(device, name))
        array = {"array": base64.b64encode(memory.getvalue()).decode(), "polygraphy_class": "ndarray"}
        outputs[name] = {"values": array, "polygraphy_class": "LazyArray"}
        done.names[name] = name
    run = {"outputs": outputs, "runtime": 0.1, "runner_name": "trt", "polygraphy_class": "IterationResult"}
    done.path.write_text(json.dumps({"lst": [["trt", [run]]], "polygraphy_class": "RunResults"}))
    return done


def tflite(device: Device, folder: Path) -> Written:
    """An interpreter's tensors: channels last, ids in the names, the planted tensor and every third one fused away."""
    done, arrays = Written(folder / "tflite.npz"), {}
    for at, (name, array) in enumerate(device.values.items()):
        if at % 3 and name != device.planted:
            arrays[f"StatefulPartitionedCall:{at}"] = channels_last(array)
            done.names[f"StatefulPartitionedCall:{at}"] = name
    if not arrays:
        return npz_renamed(device, folder)
    np.savez(done.path, **arrays)
    return done


def described_raw(device: Device, folder: Path) -> Written:
    """Raw files beside one JSON file that describes them: channels last, padded to 16, their own zero points."""
    done, records = Written(folder / "mcu"), []
    done.path.mkdir()
    for at, (name, array) in enumerate(device.values.items()):
        record: dict[str, Any] = {"name": f"layer{at}", "file": f"t{at}.bin"}
        if array.dtype.kind in "iu":
            scale, zero = device.affine(name)
            if array.dtype == np.uint8:
                array, zero = (array.astype(np.int16) - 128).astype(np.int8), zero - 128
            record |= {"scale": scale, "zero_point": zero}
        array = padded(array, 16) if array.ndim > 1 else array
        record |= {"dtype": str(array.dtype), "shape": array.shape}
        (done.path / f"t{at}.bin").write_bytes(array.tobytes())
        records.append(record)
        done.names[f"layer{at}"] = name
    (done.path / "tensors.json").write_text(json.dumps({"tensors": records}))
    return done


def headers(device: Device, folder: Path) -> Written:
    """C headers with flat arrays, channels last, as the test data of CMSIS-NN."""
    done = Written(folder / "headers")
    done.path.mkdir()
    for name, array in device.values.items():
        if array.dtype.itemsize == 1:
            kind, values = f"{array.dtype}_t", ", ".join(map(str, channels_last(array).reshape(-1)))
            (done.path / f"{plain(name)}_data.h").write_text(
                f"// generated\n#pragma once\nconst {kind} {plain(name)}[{array.size}] = {{{values}}};\n"
            )
            done.names[plain(name)] = name
    return done


def log(device: Device, folder: Path) -> Written:
    """A log: decimal codes, or bytes in hexadecimal, 16 a line, channels padded to 8."""
    done, lines = Written(folder / "serial.log"), ["boot 1.2"]
    for at, (name, array) in enumerate(device.values.items()):
        if array.dtype.itemsize > 1:
            continue
        flat = (padded(array, 8) if array.ndim > 1 else array).reshape(-1)
        words = [f"{byte:02x}" for byte in flat.tobytes()] if at % 2 else [str(code) for code in flat]
        lines.append(f"dump{at}:")
        lines += [" ".join(words[i : i + 16]) for i in range(0, len(words), 16)]
        lines.append(f"done in {at} ms")
        done.names[f"dump{at}"] = name
    done.path.write_text("\n".join(lines))
    return done


FORMS: dict[str, Callable[[Device, Path], Written]] = {
    f.__name__: f
    for f in (
        npz_renamed, npy_folder, snpe, native_raw, tidl, polygraphy, tflite, described_raw, headers, log,
    )
}  # fmt: skip
