"""What the graphs of a file share while they are read, and the errors of what contradicts itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import TYPE_CHECKING, Any

from qrun.declare.frozen import frozen
from qrun.errors import ModelError
from qrun.ir.external import External

if TYPE_CHECKING:
    import onnx


@frozen
class GraphContext:
    """What a graph sees from outside: opsets, external files, and the names of the graphs around it.

    names: of the nearest graph around it; outer: what that one sees.
    texts: every name that was read, as key and as value, so that equal names share one string.
    """

    opsets: Mapping[str, int]
    external: External
    label: str
    names: AbstractSet[str] = frozenset()
    outer: GraphContext | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.names or (self.outer is not None and name in self.outer)

    def shared(self, names: Iterable[str]) -> tuple[str, ...]:
        """These names, each as the one string that equal names share."""
        share = self.texts.setdefault
        return tuple([share(name, name) for name in names])


def invalid(scope: GraphContext, message: str, tensor: str, node: str = "", **more: Any) -> ModelError:
    where = [scope.label, *([f"node {node}"] if node else []), f"tensor {tensor}"]
    return ModelError("QR102", message, where=where, **more)


def label(proto: onnx.NodeProto, place: int) -> str:
    """What errors call a node that is not read yet."""
    return f"{proto.name or f'{proto.op_type}_{place}'} ({proto.op_type})"
