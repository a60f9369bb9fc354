"""The message classes that qrun reads files with are onnx's, whichever of the two is imported first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "models/digits/qoperator/model.onnx"
FIRST = {
    "qrun": "import sys, qrun; first = qrun.load(path); assert 'onnx' not in sys.modules; import onnx",
    "onnx": "import onnx, qrun; first = qrun.load(path)",
}
THEN = """
from qrun.ir import messages
assert messages.ModelProto is onnx.ModelProto is onnx.onnx_ml_pb2.ModelProto
assert messages.AttributeProto is onnx.AttributeProto and messages.TensorProto is onnx.TensorProto
proto = onnx.load(path)
onnx.checker.check_model(proto)
onnx.shape_inference.infer_shapes(proto)
assert qrun.load(proto).nodes == first.nodes
"""


@pytest.mark.parametrize("runtime", ["upb", "python"])
@pytest.mark.parametrize("first", sorted(FIRST))
def test_there_is_one_class_for_each_message(first: str, runtime: str) -> None:
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": runtime}
    script = f"path = {str(MODEL)!r}\n{FIRST[first]}\n{THEN}"
    made = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
