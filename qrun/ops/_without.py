"""Operators that have no kernel here, and what a user can do instead."""

from __future__ import annotations

from qrun.ir import Node
from qrun.ir.foreign import foreign_domain
from qrun.ir.schema import ASSUMED, DOMAINS


def instead(node: Node) -> str:
    """What to do where a model has this node, or "" where nothing is known."""
    foreign = foreign_domain(node.domain)
    return "" if foreign is None else foreign.instead


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
