"""Shared by the tests of the command line: small models in files, calls in this process and in a real one."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers.models import make_model, typed
from qrun.cli import main

ZERO = np.uint8(0)
ROOT = Path(__file__).resolve().parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Ended:
    """A call that has ended: exit code, and both streams as text (and stdout as bytes)."""

    code: int
    out: str
    err: str
    raw: bytes = b""

    @property
    def json(self) -> dict[str, Any]:
        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


class _Stream(io.TextIOWrapper):
    def __init__(self, data: bytes = b"", encoding: str = "utf-8") -> None:
        self.memory = io.BytesIO(data)
        super().__init__(self.memory, encoding=encoding, write_through=True)


def call(
    *arguments: str | Path,
    stdin: bytes = b"",
    encoding: str = "utf-8",
    env: Mapping[str, str] | None = None,
) -> Ended:
    """``qrun ARGUMENTS`` in this process, its streams not being terminals."""
    out, err = _Stream(encoding=encoding), _Stream(encoding=encoding)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "QRUN_MAX_MEMORY", "QRUN_CONFIG"):
            patch.delenv(name, raising=False)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", _Stream(stdin))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = main([str(argument) for argument in arguments])
    raw = out.memory.getvalue()
    return Ended(code, raw.decode(encoding, "replace"), err.memory.getvalue().decode(encoding), raw)


def says(ended: Ended, code: int, *words: str) -> Ended:
    """The call, which ended with this exit code and said all of these words on stderr."""
    assert ended.code == code, ended.err
    for word in words:
        assert word in ended.err, (word, ended.err)
    return ended


def fixes(ended: Ended, code: int, rule: str) -> list[str]:
    """The ``= fix:`` lines of a call that ended with this exit code and one error, of this code."""
    assert ended.code == code, ended.err
    errors = [line for line in ended.err.splitlines() if line.startswith("error ")]
    assert [line.split()[1] for line in errors] == [rule], ended.err
    return [line.removeprefix("   =  fix: ") for line in ended.err.splitlines() if line.startswith("   =  fix: ")]


def process(
    *arguments: str | Path,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    **more: Any,
) -> Ended:
    """``python -m qrun ARGUMENTS`` in a process of its own, on pipes."""
    drop = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "PYTHONPATH")
    clean = {key: value for key, value in os.environ.items() if key not in drop}
    command = [sys.executable, "-m", "qrun", *map(str, arguments)]
    environment = {**clean, "PYTHONPATH": str(ROOT), **(env or {})}
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment, cwd=cwd, timeout=120, **more)
    return Ended(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), done.stdout
    )


def terminal(*arguments: str, width: int = 80, only: str = "both", **env: str) -> str:
    """What a terminal of this width shows of ``qrun ARGUMENTS``. only: the stream that is the terminal."""
    host, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    drop = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    clean = {key: v for key, v in os.environ.items() if key not in drop}
    running = subprocess.Popen(
        [sys.executable, "-m", "qrun", *arguments], stdin=side,
        stdout=side if only != "err" else subprocess.DEVNULL, stderr=side if only != "out" else subprocess.DEVNULL,
        env={**clean, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip
    seen, ended = b"", False
    while True:  # `side` stays open: the last bytes of a terminal that its last process closes can be lost
        if select.select([host], [], [], 0.05)[0]:
            seen += os.read(host, 65536)
        elif ended:
            break
        else:
            ended = running.poll() is not None
    os.close(side)
    os.close(host)
    return seen.decode().replace("\r\n", "\n")


def value(name: str, number: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, number, shape)


def conv_model(
    name: str = "/stem/conv", *, image: str = "image", output: str = "y", **constants: Any
) -> onnx.ModelProto:
    """A QLinearConv of 3 to 16 channels over uint8 [N,3,8,8]; keywords replace its parameters."""
    rng = np.random.default_rng(1)
    tensors = {
        "x_scale": np.float32(0.02), "x_zp": np.uint8(128), "w": rng.integers(-128, 128, (16, 3, 3, 3)).astype(np.int8),
        "w_scale": np.float32(0.01), "w_zp": np.int8(0), "y_scale": np.float32(0.5), "y_zp": np.uint8(120),
        **constants,
    }  # fmt: skip
    names = [image, "x_scale", "x_zp", "w", "w_scale", "w_zp", "y_scale", "y_zp"] + ["b"] * ("b" in tensors)
    node = helper.make_node("QLinearConv", names, [output], name=name, pads=[1, 1, 1, 1])
    kind = TensorProto.UINT8
    return make_model([node], {image: typed(kind, ["N", 3, 8, 8])}, {output: typed(kind)}, tensors, 13)


def deep_model(layers: int = 12, prefix: str = "/features/features.") -> onnx.ModelProto:
    """A chain of QLinearConv with the long names that exporters write."""
    tensors: dict[str, Any] = {
        "x_scale": np.float32(0.02), "x_zp": np.uint8(128), "w": np.ones((3, 3, 1, 1), np.int8),
        "w_scale": np.float32(0.3), "w_zp": np.int8(0),
    }  # fmt: skip
    nodes, last = [], "image"
    for place in range(layers):
        made = (
            f"{prefix}{place}/conv/conv.{place % 2}/conv.0/Conv_output_0_quantized" if place < layers - 1 else "logits"
        )
        names = [last, "x_scale", "x_zp", "w", "w_scale", "w_zp", "x_scale", "x_zp"]
        label = f"{prefix}{place}/conv/conv.{place % 2}/conv.0/Conv_quant"
        nodes.append(helper.make_node("QLinearConv", names, [made], name=label))
        last = made
    kind = TensorProto.UINT8
    return make_model(nodes, {"image": typed(kind, ["N", 3, 8, 8])}, {"logits": typed(kind)}, tensors, 13)


def sum_model(
    names: Sequence[str] = ("a", "b"), number: int = TensorProto.FLOAT, shape: Sequence[int | str | None] = (2,)
) -> onnx.ModelProto:
    """``y = names[0] + names[1] + ...``, or a copy of the only one."""
    last, nodes = names[0], []
    for place, name in enumerate(names[1:]):
        made = "y" if place == len(names) - 2 else f"s{place}"
        nodes.append(helper.make_node("Add", [last, name], [made], name=f"add{place}"))
        last = made
    if len(names) == 1:
        nodes.append(helper.make_node("Identity", [last], ["y"], name="copy"))
    return make_model(nodes, {n: typed(number, shape) for n in names}, {"y": typed(number)})


def quantize_model(scale: Any = 0.5, zero: Any = ZERO, shape: Sequence[int | str | None] = ("N",)) -> onnx.ModelProto:
    """``q = QuantizeLinear(x)`` of float32 x."""
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quant")
    tensors = {"scale": np.asarray(scale, np.float32), "zero": np.asarray(zero)}
    output = value("q", helper.np_dtype_to_tensor_dtype(np.asarray(zero).dtype), None)
    return make_model([node], {"x": shape}, [output], tensors)


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def npy(path: Path, array: Any, **options: Any) -> Path:
    np.save(path, array, **options)
    return path


def npy_bytes(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()
