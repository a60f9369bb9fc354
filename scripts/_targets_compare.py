"""Compares what a target file foretells of models with what the runtime does, and prints where they disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from _targets_oracle import Seen

from qrun.checking.targets import DeployTarget
from qrun.ir import Model, Node

PLACES = ("weight-only", "float", "cpu")
WHOLE = ("refused", "crash")
"""A model that is refused cannot crash."""
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
            if broken.otherwise in WHOLE and (not whole or (whole, broken.otherwise) == ("crash", "refused")):
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
    """Counts of a set of models on a target.

    loaded: models that the runtime loads, with `nodes` nodes that the file and the runtime have a verdict on.
    integer: models that the runtime computes in integers, every node. alarms: those among them that the file faults.
    conv: Conv nodes, and those of them in integers, foretold and seen.
    """

    models: int = 0
    equal: int = 0
    loaded: int = 0
    nodes: int = 0
    integer: int = 0
    alarms: list[str] = field(default_factory=list)
    conv: Counter[str] = field(default_factory=Counter)
    found: list[Difference] = field(default_factory=list)

    def add(self, name: str, model: Model, told: Foretold, seen: Seen) -> Sequence[Difference]:
        """Count a model. Returns the disagreements on it."""
        found = list(differences(name, model, told, seen))
        self.found += found
        self.models, self.equal = self.models + 1, self.equal + (not found)
        if seen.whole:
            return found
        both = told.nodes.keys() & seen.nodes.keys()
        self.loaded, self.nodes = self.loaded + 1, self.nodes + len(both)
        if seen.nodes and not seen.wrong and set(seen.nodes.values()) == {"int"}:
            self.integer += 1
            if told.whole or told.wrong or any(told.nodes[index] != "int" for index in both):
                self.alarms.append(name)
        for index in both:
            if model.nodes[index].op_type == "Conv":
                verdicts = {"nodes": 1, "foretold": told.nodes[index] == "int", "seen": seen.nodes[index] == "int"}
                self.conv.update({key: int(value) for key, value in verdicts.items()})
        return found

    def report(self) -> Iterator[str]:
        """The lines of the report: shares, then groups of disagreements, each with its smallest model."""
        share = 100 * self.equal / self.models if self.models else 0.0
        yield f"  models with every verdict equal  {self.equal} of {self.models} ({share:.1f} %)"
        unequal = sum(each.what not in ("model", "numbers") for each in self.found)
        yield f"  nodes with equal verdicts        {self.nodes - unequal} of {self.nodes}, in {self.loaded} models that load"
        yield f"  Conv in integers                 {self.conv['foretold']} foretold, {self.conv['seen']} seen, of {self.conv['nodes']}"
        yield f"  false alarms                     {len(self.alarms)} of {self.integer} models that run wholly in integers"
        groups: dict[tuple[str, ...], list[Difference]] = {}
        for each in self.found:
            groups.setdefault(each.group, []).append(each)
        for several in sorted(groups.values(), key=lambda some: -len(some)):
            first = min(several, key=lambda each: each.size)
            yield f"  {len(several):4}  {first.what}: foretold {first.foretold}, seen {first.seen}  {first.rule}".rstrip()
            yield f"        smallest: {first.name}, {first.size} nodes  {first.node}".rstrip()
            if first.error:
                yield f"        message: {first.error[:200]}"


def changes(model: Model, verdicts: Mapping[str, Seen]) -> Iterator[tuple[str, str]]:
    """Yield where the verdict on a model changed between releases: the release, and what is new there."""
    releases = list(verdicts)
    for old, new in pairwise(releases):
        yield from ((new, what) for what in _change(model, verdicts[old], verdicts[new]))


def _change(model: Model, before: Seen, seen: Seen) -> Iterator[str]:
    """What is new in a release, in a few words."""
    if before.whole != seen.whole:
        error = _words(before.error or seen.error)
        yield f"{before.whole or 'loads'} -> {seen.whole or 'loads'}: {error}"
        return
    found = {
        f"{model.nodes[index].op_type} {before.nodes[index]} -> {seen.nodes[index]}"
        for index in before.nodes.keys() & seen.nodes.keys()
        if before.nodes[index] != seen.nodes[index]
    }
    yield from sorted(found)
    if bool(before.wrong) != bool(seen.wrong):
        kinds = "+".join(sorted({node.op_type for node in model.nodes} - set(QUANTIZERS)))
        yield f"numbers of {kinds} {'wrong' if before.wrong else 'right'} -> {'wrong' if seen.wrong else 'right'}"
