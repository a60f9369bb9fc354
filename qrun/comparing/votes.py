"""Names the arithmetic of a device from all integer nodes of a model.

Every QLinearConv, QLinearMatMul, QGemm, and every group that fuses into one, votes: given its inputs as the device had
them, which families of arithmetics give exactly its codes? The device's arithmetic is among the families that fit every
node. Ordinary data seldom singles out one family, so the claim is about what they share; if that is too little, or a
node contradicts, it is undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from qrun.arithmetics import FAMILIES, Arithmetic
from qrun.arithmetics.groups import are_alike, describe_group, name_users, variants
from qrun.comparing.causes._cause import Suspect
from qrun.comparing.causes._families import SAMPLE, NodeSums, count_differing, fitting_variants, node_sums
from qrun.comparing.emulated import NodeGroup
from qrun.comparing.sides import Unit, Values
from qrun.declare import grouped
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array, Model, Node
from qrun.ops._quantize import is_integer

OTHER = 0.04
"""If the best family misses more than this share of a node's codes, the node differs by more than its rounding."""


@frozen
class NodeVote:
    """The vote of a node.

    kind:      its operator, ``Conv``, ``grouped Conv`` or ``MatMul``, and whether its weights have a scale per channel.
    elements:  the number of its codes. differing: by family, the number of codes that differ, counted in up to SAMPLE
               of them; 0 means that none differs in all of them.
    variants:  names of variants of families that fit too, as far as the elements that tell most show.
    """

    KEYS = keys("node=node.index label=node.label tensor kind elements families counted differing=least")

    node: Node
    tensor: str
    kind: tuple[str, str]
    elements: int
    differing: Mapping[str, int]
    variants: frozenset[str] = frozenset()

    @property
    def families(self) -> tuple[str, ...]:
        """The names of the families that fit."""
        return tuple(name for name, count in self.differing.items() if not count)

    @property
    def least(self) -> int:
        """The number of codes that differ from the best family, of those counted."""
        return min(self.differing.values())

    @property
    def counted(self) -> int:
        """The number of codes in which differences were counted."""
        return min(self.elements, SAMPLE)


@frozen(slots=False)
class ArithmeticClaim:
    """The arithmetic that nodes of one kind have in common.

    kind:  the kind of nodes, "" for all nodes. votes: theirs. contradicting: the nodes that the families left do not
           fit. unlike: nodes that differ by more than rounding, which do not count.
    """

    KEYS = keys("kind named text families users elements nodes next votes silent contradicting=opposing_tensors unlike")

    kind: str
    votes: tuple[NodeVote, ...]
    unlike: tuple[NodeVote, ...] = ()

    @cached_property
    def families(self) -> tuple[str, ...]:
        """The families left: those that fit every node, or else as many nodes as possible."""
        counts = Counter(name for vote in self.votes for name in vote.families)
        most = max(counts.values(), default=0)
        return tuple(name for name in FAMILIES if most and counts[name] == most)

    @property
    def contradicting(self) -> tuple[NodeVote, ...]:
        """The nodes that some family left does not fit."""
        left = set(self.families)
        return tuple(vote for vote in self.votes if not left <= set(vote.families))

    @property
    def opposing_tensors(self) -> tuple[str, ...]:
        """The tensors of the nodes that contradict."""
        return tuple(vote.tensor for vote in self.contradicting)

    @cached_property
    def rows(self) -> tuple[Arithmetic, ...]:
        """The families left, and the variants of families that fit every node."""
        every = frozenset.intersection(*(vote.variants for vote in self.votes))
        return (*(FAMILIES[name] for name in self.families), *(row for row in variants() if row.name in every))

    @property
    def named(self) -> bool:
        """Does the evidence single out a group of arithmetics, without a contradiction?"""
        return bool(self.rows) and not self.contradicting and are_alike(self.rows)

    @property
    def text(self) -> str:
        """What the arithmetics left share; "" if there is nothing."""
        return describe_group(self.rows) if self.rows else ""

    @property
    def users(self) -> str:
        """Who computes so; "" if nobody is known to."""
        return name_users(self.rows)

    @property
    def silent(self) -> tuple[str, ...]:
        """The kinds of nodes whose own votes would not single out a group: here they only do not contradict."""
        kinds = grouped((vote.kind[0], vote) for vote in self.votes)
        alone = {kind: ArithmeticClaim(kind, tuple(votes)) for kind, votes in kinds.items()}
        return tuple(kind for kind, claim in alone.items() if self.named and not claim.named)

    @property
    def elements(self) -> int:
        """The codes of all nodes."""
        return sum(vote.elements for vote in self.votes)

    @property
    def nodes(self) -> int:
        """The number of nodes that vote."""
        return len(self.votes)

    @property
    def next(self) -> Rival | None:
        """The family that comes next, with the codes that rule it out; None if there is none."""
        others = [name for name in FAMILIES if name not in self.families]
        counts = {name: sum(vote.differing[name] for vote in self.votes) for name in others}
        name = min(counts, key=lambda each: counts[each], default=None)
        return None if name is None else Rival(name, counts[name])


@frozen
class Rival:
    """A family that does not fit: the number of codes that differ from it."""

    KEYS = keys("family differing")

    family: str
    differing: int


def claims(votes: Sequence[NodeVote]) -> tuple[ArithmeticClaim, ...]:
    """What the votes say: one claim for all nodes if a family fits them all, else one for each kind of node.

    Engines may compute different operators differently, such as LiteRT's FULLY_CONNECTED.
    """
    unlike = tuple(vote for vote in votes if vote.least > OTHER * vote.counted)
    kept = [vote for vote in votes if vote not in unlike]
    if not kept:
        return ()
    ways: tuple[Callable[[NodeVote], str], ...] = (
        lambda vote: "",
        lambda vote: vote.kind[0],
        lambda vote: ", ".join(filter(None, vote.kind)),
    )
    for way in ways:
        made = [ArithmeticClaim(kind, tuple(given)) for kind, given in grouped((way(v), v) for v in kept).items()]
        if not any(claim.contradicting for claim in made):
            break
    else:
        made = [ArithmeticClaim("", tuple(kept))]
    return tuple(ArithmeticClaim(claim.kind, claim.votes, unlike if not at else ()) for at, claim in enumerate(made))


def vote(model: Model, unit: Unit, tensor: str, inputs: Values, theirs: Array) -> NodeVote | None:
    """The vote of a unit, from the device's inputs and codes; None if it is no product of integers."""
    product = next((node for node in unit.group if node.op_type in _KINDS), None)
    if product is None or not is_integer(theirs.dtype) or theirs.dtype.itemsize > 1:
        return None
    integer = partial(NodeGroup(model, unit, tensor, inputs).integer_node, theirs)
    sums = node_sums(Suspect(model, unit, tensor, inputs, theirs, theirs, integer=integer))
    if sums is None or sums.acc.shape != theirs.shape:
        return None
    counts, fitting = count_differing(sums, theirs), fitting_variants(sums, theirs)
    return NodeVote(unit.node, tensor, _kind(product, sums), theirs.size, counts, fitting)


_KINDS = {
    **dict.fromkeys(("Conv", "QLinearConv"), "Conv"),
    **dict.fromkeys(("MatMul", "Gemm", "QLinearMatMul", "QGemm"), "MatMul"),
}


def _kind(node: Node, sums: NodeSums) -> tuple[str, str]:
    """The operator, and if its weights have several scales."""
    group = node.attributes.get("group", 1)
    grouped = isinstance(group, int) and group > 1
    return ("grouped " * grouped) + _KINDS[node.op_type], "per channel" if sums.scales.w.size > 1 else "per tensor"
