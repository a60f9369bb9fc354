"""The result of comparing one model on two sides: every tensor that both have, and the first that differs."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.comparing.causes import CRASHED, REFUSED, Reason
from qrun.comparing.differences import TensorPair, Tolerance
from qrun.comparing.sides import Unit
from qrun.comparing.votes import ArithmeticClaim
from qrun.declare import InNotebook
from qrun.declare.frozen import frozen, keys, through
from qrun.errors import QrunError
from qrun.ir import Model, Node


@frozen
class Guilt:
    """Why a tensor differs although both sides read the same values.

    pair:   the first side's result, computed from the second side's inputs, and the second side's result.
    exact:  the value before rounding at the largest difference, zero point added, in steps; None if not known.
    inside: where a subgraph of the node first differs; `reason` then explains the tensor there.
    """

    KEYS = {
        **through("pair", TensorPair.KEYS),
        **keys("before_rounding=exact cause=reason.cause text=reason.text explained=reason.explained also=reason.also"),
        **keys(
            "inside residual=reason.residual exact_ties=reason.ties nearest_tie=reason.nearest farthest_tie=reason.farthest"
        ),
    }

    pair: TensorPair
    reason: Reason
    exact: float | None = None
    inside: GraphDifference | None = None


@frozen
class GraphDifference:
    """Where a subgraph of a node first differs.

    graph:  the attribute, such as ``then_branch``. turn: the iteration of a loop, from 0, which read what the second
            side made in the iteration before; None for a graph that runs once.
    tensor: the first tensor that differs, or the origin of its difference. found: the comparison of the graph.
    slight: is every difference within the tolerance in every turn? Then they add up, and `tensor` has the first ones.
    """

    KEYS = keys("graph iteration=turn first=tensor.name tensors=found.tensors slight")

    graph: str
    turn: int | None
    tensor: ComparedTensor
    found: Comparison
    slight: bool = False

    @property
    def where(self) -> str:
        """``body in iteration 3``, counted from 0."""
        return self.graph if self.turn is None else f"{self.graph} in iteration {self.turn}"


@frozen
class ComparedTensor:
    """One tensor on both sides.

    pair:   both sides' results from their runs (with `isolate`: the first side's from the second side's inputs).
    inputs: did both sides read the same bits? None: not known, because the second side does not expose all inputs or
            may have read some in another precision than it exposes (`unseen`).
    guilt:  why it differs even if computed from the same inputs; None if it does not, or only inherits a difference.
    checked: was it recomputed from the other side's inputs?
    unseen: names of inputs that are equal as the second side exposes them, but that it may have read in another
            precision.
    """

    KEYS = {
        **keys("name node=node.index label=node.label domain=node.full_domain op=node.op_type group"),
        **through("pair", TensorPair.KEYS),
        **keys("inputs_equal=inputs checked by_itself=guilt"),
    }

    unit: Unit
    name: str
    pair: TensorPair
    inputs: bool | None
    guilt: Guilt | None = None
    checked: bool = False
    unseen: tuple[str, ...] = ()

    @property
    def node(self) -> Node:
        """The node that makes the tensor."""
        return self.unit.node

    @property
    def group(self) -> tuple[int, ...]:
        """Indices of the nodes in the unit that makes it."""
        return tuple(node.index for node in self.unit.group)

    @property
    def differs(self) -> bool:
        """Whether the two sides differ by more than the tolerance."""
        return not self.pair.equal

    @property
    def cause(self) -> str:
        """The name of the cause of its difference, as ``qrun explain causes`` lists them; "" if it has none of its
        own: it is equal, or only inherits a difference."""
        return self.guilt.reason.cause if self.guilt is not None else ""

    @property
    def refused(self) -> bool:
        """Does the second side refuse to compute it, or crash?"""
        return self.cause in (REFUSED, CRASHED)

    @property
    def crashed(self) -> bool:
        """Does the second side crash?"""
        return self.cause == CRASHED


@frozen
class Comparison(InNotebook):
    """All tensors that both sides have, in graph order.

    a, b:      labels of the sides; names: what tables call them. isolate: was every node fed the second side's values?
    outputs:   the graph's outputs that nodes make, from the sides' own runs.
    piecewise: the second side's error, if it refused the whole model or crashed;
               it then ran node by node on the first side's values.
    origin:    if the first difference is inherited: the first tensor upstream whose bits differ, within the tolerance,
               and why; None if not known.
    arithmetic: what all integer nodes together say about the second side's requantization; empty if it is qrun, or if
               no integer node says anything.
    """

    model: Model
    a: str
    b: str
    names: tuple[str, str]
    tensors: tuple[ComparedTensor, ...]
    outputs: tuple[tuple[str, TensorPair], ...]
    tolerance: Tolerance
    isolate: bool = False
    piecewise: QrunError | None = None
    origin: ComparedTensor | None = None
    arithmetic: tuple[ArithmeticClaim, ...] = ()

    def __repr__(self) -> str:
        first = self.first
        told = (
            "equal"
            if first is None
            else f"{len(self.differing)} of {len(self.tensors)} tensors differ, first at node {first.node.index} {first.node.label}"
        )
        return f"<qrun.Comparison {self.model.label}, {self.names[0]} and {self.names[1]}: {told}>"

    @property
    def differing(self) -> tuple[ComparedTensor, ...]:
        """The tensors that differ."""
        return tuple(t for t in self.tensors if t.differs)

    @property
    def refused(self) -> tuple[ComparedTensor, ...]:
        """The tensors that the second side refuses to compute, or crashes on."""
        return tuple(t for t in self.tensors if t.refused)

    @property
    def first(self) -> ComparedTensor | None:
        """The first tensor that differs; a refused one only if no other does."""
        return first_difference(self.tensors)

    @property
    def equal(self) -> bool:
        """Is every tensor within the tolerance?"""
        return not self.differing


def first_difference(tensors: Sequence[ComparedTensor]) -> ComparedTensor | None:
    """The first tensor that differs; a refused one only if no other does."""
    differing = [t for t in tensors if t.differs]
    return next((t for t in differing if not t.refused), next(iter(differing), None))
