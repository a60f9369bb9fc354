"""Compares what a target file foretells of models with what the runtime does, and prints where they disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from _targets_oracle import Seen

from qrun.checking.targets import DeployTarget
from qrun.ir import Model, Node

PLACES = ("weight-only", "float", "cpu")
WHOLE = ("refused", "crash")
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Foretold:
    """What a target file says. whole, nodes: as of Seen. wrong: does it say that numbers are wrong? rules: the ids of
    the rules behind each node's verdict, and behind whole."""

    whole: str
    nodes: Mapping[int, str]
    wrong: bool
    rules: Mapping[int, str]
    rule: str = ""


def foretell(target: DeployTarget, model: Model) -> Foretold:
    """What the file says of the nodes of a model's main graph, other than QuantizeLinear and DequantizeLinear."""
    whole, rule, wrong = "", "", False
    nodes: dict[int, str] = {}
    rules: dict[int, str] = {}
    for each in target.verdict(model).judged:
        for broken in each.rules:
            wrong |= broken.otherwise == "wrong"
            if broken.otherwise in WHOLE and not whole:
                whole, rule = broken.otherwise, broken.id
        place = next((broken for broken in each.rules if broken.otherwise in PLACES), None)
        index = each.node.index
        stated = each.wanted or place is not None or _reads_real(model, each.node)
        if each.scope.index is None and each.node.op_type not in QUANTIZERS and stated:
            nodes[index] = "int" if each.integer else place.otherwise if place else "float"
            rules[index] = place.id if place else ""
    return Foretold(whole, nodes, wrong, rules, rule)


def _reads_real(model: Model, node: Node) -> bool:
    """Does a node read a dequantized tensor?"""
    makers = (model.producers.get(name) for name in node.inputs)
    return any(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)


@dataclass(frozen=True)
class Difference:
    """A disagreement. what: the operator, or "model". rule: the id of the rule that misleads the file, "" if none.
    name: of the model; size: its number of nodes, by which the smallest example is found."""

    what: str
    foretold: str
    seen: str
    rule: str
    name: str
    size: int
    node: str = ""
    error: str = ""

    @property
    def group(self) -> tuple[str, ...]:
        """Differences of one group have the same cause, as far as the script can tell."""
        return self.what, self.foretold, self.seen, self.rule, _words(self.error)


def _words(error: str) -> str:
    """The part of a message that does not name nodes, tensors and numbers."""
    return " ".join(word for word in error.split() if word.isalpha())[:90]


def differences(name: str, model: Model, told: Foretold, seen: Seen) -> Iterator[Difference]:
    """Yield the disagreements on a model; on nodes only if it loads, and the file and the runtime have a verdict."""
    size = len(model.nodes)
    if told.whole != seen.whole:
        expected, got = told.whole or "loads", seen.whole or "loads"
        yield Difference("model", expected, got, told.rule, name, size, error=seen.error)
    if told.whole or seen.whole:
        return
    if told.wrong != bool(seen.wrong):
        kinds = "+".join(sorted({n.op_type for n in model.nodes} - set(QUANTIZERS))) if seen.wrong else ""
        said, got = ("wrong", "right") if told.wrong else ("right", "wrong")
        yield Difference("numbers", said, got, kinds, name, size, ", ".join(seen.wrong))
    for index in sorted(told.nodes.keys() & seen.nodes.keys()):
        if told.nodes[index] != seen.nodes[index]:
            node = model.nodes[index]
            rule = told.rules[index]
            yield Difference(node.op_type, told.nodes[index], seen.nodes[index], rule, name, size, node.label)


@dataclass
class Tally:
    """Counts of a set of models on a target."""

    models: int = 0
    equal: int = 0
    nodes: int = 0
    loaded: int = 0
    found: list[Difference] | None = None
    conv: Counter[str] | None = None

    def __post_init__(self) -> None:
        self.found, self.conv = [], Counter()

    def add(self, name: str, model: Model, told: Foretold, seen: Seen) -> list[Difference]:
        """Count a model. Returns the disagreements on it."""
        found = list(differences(name, model, told, seen))
        self.models, self.equal = self.models + 1, self.equal + (not found)
        if self.found is not None and self.conv is not None and not seen.whole:
            self.loaded += 1
            self.nodes += len(told.nodes.keys() & seen.nodes.keys())
            convs = [i for i in seen.nodes if model.nodes[i].op_type == "Conv" and i in told.nodes]
            self.conv.update({"nodes": len(convs), "foretold": sum(told.nodes[i] == "int" for i in convs)})
            self.conv["seen"] += sum(seen.nodes[i] == "int" for i in convs)
        if self.found is not None:
            self.found += found
        return found

    def report(self) -> Iterator[str]:
        """The lines of the report: shares, then groups of disagreements, each with its smallest model."""
        found, conv = self.found or [], self.conv or Counter()
        share = 100 * self.equal / self.models if self.models else 0.0
        yield f"  models with every verdict equal   {self.equal} of {self.models} ({share:.1f} %)"
        nodes = sum(d.what not in ("model", "numbers") for d in found)
        yield f"  nodes                             {self.nodes - nodes} of {self.nodes} equal, of {self.loaded} models that load"
        if conv["nodes"]:
            yield f"  Conv in integers                  {conv['foretold']} foretold, {conv['seen']} seen, of {conv['nodes']}"
        groups: dict[tuple[str, ...], list[Difference]] = {}
        for each in found:
            groups.setdefault(each.group, []).append(each)
        for several in sorted(groups.values(), key=lambda some: -len(some)):
            first = min(several, key=lambda d: d.size)
            yield f"  {len(several):4}  {first.what}: foretold {first.foretold}, seen {first.seen}   {first.rule}".rstrip()
            yield f"        smallest: {first.name}, {first.size} nodes {first.node}".rstrip()
            if first.error:
                yield f"        says: {first.error[:200]}"


def changes(verdicts: Mapping[str, Seen]) -> Sequence[tuple[str, str]]:
    """Between which releases the verdict on a model changed: pairs of the release and what is new there."""
    found: list[tuple[str, str]] = []
    before: Seen | None = None
    for release, seen in verdicts.items():
        if before is not None and _signature(before) != _signature(seen):
            found.append((release, _change(before, seen)))
        before = seen
    return found


def _signature(seen: Seen) -> tuple[object, ...]:
    return seen.whole, bool(seen.wrong), tuple(sorted(seen.nodes.items()))


def _change(before: Seen, seen: Seen) -> str:
    """What changed, in a few words."""
    if before.whole != seen.whole:
        return f"{before.whole or 'loads'} -> {seen.whole or 'loads'}"
    common = before.nodes.keys() & seen.nodes.keys()
    nodes = sorted({f"{before.nodes[i]} -> {seen.nodes[i]}" for i in common if before.nodes[i] != seen.nodes[i]})
    numbers = [f"{_right(before)} -> {_right(seen)}"] if _right(before) != _right(seen) else []
    return ", ".join(nodes + numbers) or "other nodes fused"


def _right(seen: Seen) -> str:
    return "wrong" if seen.wrong else "right"
