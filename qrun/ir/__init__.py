"""ModelProto to Model: reading, checking and resolving names, types and versions.

May be imported by everything but `native`, `memory` and `errors`. Imports onnx so that nothing above has to; knows no
operator's meaning and no backend.
"""

from qrun.ir.model import Array, Attribute, Model, Node, TensorType, once_per_model

__all__ = ["Array", "Attribute", "Model", "Node", "TensorType", "once_per_model"]
