"""Rows of tables about nodes, also of graphs inside If, Loop and Scan: their outputs, and names that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qrun.declare import grouped
from qrun.declare.frozen import replace
from qrun.ir import Model, Node
from qrun.ir.types import shape_text, type_name
from qrun.report.grid import Column, Grid
from qrun.report.screen import NAME, Screen
from qrun.report.text import duration, percent, plural, same_start
from qrun.running.session import InsideEvent, NodeEvent

if TYPE_CHECKING:
    from qrun.documents.answers import InsideTimes, RanNode, TensorForm


def node_of(model: Model, event: NodeEvent) -> Node:
    """The node of the file that names an event; if the event's index is beyond the file's nodes, the node that ran."""
    if event.index < len(model.nodes) or event.node is None:
        return model.nodes[event.index]
    return event.node


def op_names(nodes: Iterable[Node | RanNode]) -> Callable[[Node | RanNode], str]:
    """Returns the function that names operators in tables of these nodes: with the domain only if two share a name."""

    def names(node: Node | RanNode) -> tuple[str, str]:
        return (node.op_type, node.op) if isinstance(node, Node) else (node.op, node.qualified)

    known = grouped(map(names, nodes))

    def name(node: Node | RanNode) -> str:
        short, full = names(node)
        return full if len(set(known.get(short, ()))) > 1 else short

    return name


def fused_text(event: NodeEvent | RanNode, op: str) -> str:
    """The operator, and the number of other nodes fused into it: ``Conv +3``."""
    others = len(event.group) - 1
    return f"{op} +{others}" if others > 0 else op


def step_names(labels: Iterable[tuple[int, str]]) -> Callable[[NodeEvent | RanNode, str], str]:
    """Returns the function that names a table's row: its own name, or the names of all nodes of its step.

    labels: index and name of each row.
    """
    known = dict(labels)

    def name(row: Any, own: str) -> str:
        names = [known.get(index, f"#{index}") for index in row.step]
        return ", ".join(names if len(names) <= STEP else [*names[:2], "…", names[-1]]) or own

    return name


STEP = 4
"""The most nodes of a step that are all named."""
STEPS = "nodes listed together ran as one step; the time covers all of them"


def is_moved(model: Model, event: NodeEvent) -> bool:
    """Whether the event is a DequantizeLinear that ran after nodes that follow it in the file."""
    own, ran = node_of(model, event), event.node
    return own.op_type == "DequantizeLinear" and ran is not None and own.inputs[0] != ran.inputs[0]


FUSED = "+N: fused with N other nodes into one integer operator (--no-fuse to prevent)"
MOVED = "moved: runs after reshapes and pools, which then work on integers; same result"


def output_text(event: NodeEvent) -> str:
    """Type and shape of a node's outputs: ``uint8 [1,96,56,56]``."""
    return ", ".join(f"{type_name(t.dtype)} {shape_text(t.shape)}" for t in event.outputs)


def ran(model: Model, event: NodeEvent) -> RanNode:
    """The record of what ran, for documents and for tables that show the kernel."""
    from qrun.documents.answers import RanNode

    return RanNode(**ran_fields(model, event))


def ran_fields(model: Model, event: NodeEvent) -> dict[str, Any]:
    """The fields of a RanNode."""
    node = node_of(model, event)
    fused = {"group": event.group, "runs_as": event.node.op} if event.node and len(event.group) > 1 else {}
    return {
        "index": event.index,
        "name": node.name,
        "domain": node.full_domain,
        "op": node.op_type,
        "backend": event.backend,
        "why": event.why,
        "kernels": event.sections,
        **fused,
    }


def outputs(event: NodeEvent) -> tuple[TensorForm, ...]:
    from qrun.documents.answers import TensorForm

    return tuple(TensorForm(t.name, type_name(t.dtype), t.shape) for t in event.outputs)


def common_prefix(names: Sequence[str]) -> str:
    """The path that all names start with, through its last slash; "" if a name would have nothing left."""
    if len(names) < 2:
        return ""
    prefix = names[0][: names[0][: same_start(names)].rfind("/") + 1]
    return prefix if len(prefix) > 1 and all(len(name) > len(prefix) for name in names) else ""


def fold_prefix(screen: Screen, grid: Grid, place: int = 1) -> Grid:
    """If the grid is too wide for the screen, moves the common path of the names in column `place` into the header."""
    if screen.fits(grid):
        return grid
    named = [row[place] for at, row in enumerate(grid.rows) if grid.styles.get((at, place)) != ""]  # no sums
    prefix = common_prefix(named)
    if not prefix:
        return grid
    columns = [replace(c, header=f"{c.header} in {prefix}") if at == place else c for at, c in enumerate(grid.columns)]
    rows = [[cell.removeprefix(prefix) if at == place else cell for at, cell in enumerate(row)] for row in grid.rows]
    return Grid(columns, rows, grid.styles)


def inside_times(events: Sequence[InsideEvent]) -> list[InsideTimes]:
    from qrun.documents.answers import InsideTimes

    return [InsideTimes(e.path, e.op, e.runs, e.duration_ns / 1e6, e.backend, e.why) for e in events]


def inside_left(events: Sequence[InsideTimes | InsideEvent], most: int | None) -> str:
    """``2 more nodes inside``: the number that `inside_grid` leaves out; "" if it shows all."""
    left = 0 if most is None else len(events) - most
    return f"{plural(left, 'more node')} inside" if left > 0 else ""


def inside_grid(events: Sequence[InsideTimes], whole_ms: float, most: int | None) -> Grid:
    """The slowest nodes first, or all in execution order if `most` is None. whole_ms: all nodes' time, for shares."""
    shown = events if most is None else sorted(events, key=lambda e: -e.time_ms)[:most]
    columns = [
        Column("inside", style=NAME, shrink=2, cell=lambda e: e.path),
        Column("op", shrink=1, cell=lambda e: e.op),
        Column("runs", right=True, cell=lambda e: str(e.runs)),
        Column("time", right=True, cell=lambda e: duration(e.time_ms * 1e6)),
        Column("share", right=True, cell=lambda e: percent(e.time_ms / whole_ms if whole_ms else 0)),
        Column("kernel", optional=1, cell=lambda e: e.backend),
    ]
    return Grid.of(columns, shown)
