"""Reads ModelProto into Model: checks it and resolves names, types and versions.

May be imported by everything but `native`, `memory` and `errors`. Imports onnx so that nothing above has to; knows no
operator's meaning and no backend.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qrun.ir.model import Array, Attribute, Model, Node, TensorType, once_per_model

__all__ = ["Array", "Attribute", "Model", "Node", "TensorType", "once_per_model"]


def __getattr__(name: str) -> object:
    """Import the model on first use, so that a file can be read (wire.py) before numpy is there."""
    if name in __all__:
        from qrun.ir import model

        globals().update({known: getattr(model, known) for known in __all__})
        return globals()[name]
    raise AttributeError(f"module 'qrun.ir' has no attribute {name!r}")
