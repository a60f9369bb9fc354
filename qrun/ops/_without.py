"""Operators that have no kernel here or in onnxruntime, and what a user can do instead."""

from __future__ import annotations

from qrun.ir import Node

_INSTEAD = {
    "ImageDecoder": "decode images before the run with a library such as Pillow, and feed them to a model that begins behind "
    "ImageDecoder: onnx.utils.extract_model(MODEL, NEW, ['{}'], OUTPUTS)",
}


def instead(node: Node) -> str:
    """What to do where a model has this node, or "" where nothing is known."""
    return _INSTEAD.get(node.op, "").format(node.outputs[0] if node.outputs else "")
