"""ModelProto to Model: reading, checking and resolving; with rules/ and peers.py, the only importers of onnx."""

from qrun.ir.load import load
from qrun.ir.model import Array, Attribute, Model, Node, TensorType

__all__ = ["Array", "Attribute", "Model", "Node", "TensorType", "load"]
