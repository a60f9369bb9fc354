"""Geometry of pools that is known before any run."""

from __future__ import annotations

from qrun.ir import Node


def windows_reach_input(node: Node) -> bool:
    """Whether every window of a pool covers an element of the input, whatever its size."""
    kernel, pads, dilations = (_ints(node, name) for name in ("kernel_shape", "pads", "dilations"))
    dilated = any(d != 1 for d in dilations)
    if node.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return not dilated
    if not any(pads):
        return True
    half = len(kernel)
    sums = [begin + end for begin, end in zip(pads[:half], pads[half:], strict=False)]
    return not dilated and len(sums) == half and all(s < k for s, k in zip(sums, kernel, strict=True))


def _ints(node: Node, name: str) -> tuple[int, ...]:
    values = node.attributes.get(name, ())
    return values if isinstance(values, tuple) else ()
