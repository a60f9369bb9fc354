"""Operators that have no kernel here, and what a user can do instead."""

from __future__ import annotations

from qrun.ir import Node
from qrun.ir.foreign import foreign_domain
from qrun.ir.schema import ASSUMED, DOMAINS

_INSTEAD = {
    "ImageDecoder": "decode images before the run with a library such as Pillow, and feed them to a model that begins behind "
    "ImageDecoder: onnx.utils.extract_model(MODEL, NEW, ['{}'], OUTPUTS)",
}


def instead(node: Node) -> str:
    """What to do where a model has this node, or "" where nothing is known."""
    foreign = foreign_domain(node.domain)
    if foreign is not None:
        return foreign.instead
    return _INSTEAD.get(node.op, "").format(node.outputs[0] if node.outputs else "")


def why_without(node: Node) -> str:
    """Why qrun does not run this node."""
    foreign = foreign_domain(node.domain)
    if foreign is not None:
        return foreign.why(node.domain)
    if node.domain not in {*DOMAINS, *ASSUMED}:
        return f"domain {node.domain!r} is not one that qrun knows."
    return ""


def runs_in_ort(node: Node) -> bool:
    """Whether onnxruntime itself has the operators of a domain that is not of ONNX."""
    foreign = foreign_domain(node.domain)
    return foreign is not None and foreign.with_ort
