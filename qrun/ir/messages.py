"""The classes of ONNX's protobuf messages, without the rest of onnx, which takes as long to import as numpy.

They are onnx's own: protobuf has one class for each message type, whichever module imports it first.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["AttributeProto", "ModelProto", "TensorProto"]


def generated_module() -> ModuleType:
    """The module that protobuf's compiler generated for onnx, under a name that nobody else imports; onnx where that
    fails, and where it is imported already."""
    package = None if "onnx" in sys.modules else find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, "onnx_ml_pb2.py")
        spec = spec_from_file_location("qrun.ir._onnx_ml_pb2", file) if file.is_file() else None
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    import onnx

    return onnx


if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, TensorProto
else:
    _module = generated_module()
    AttributeProto, ModelProto, TensorProto = _module.AttributeProto, _module.ModelProto, _module.TensorProto
