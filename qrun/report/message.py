"""Prints errors and findings in the house style: message, place, facts, why, fix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qrun.declare import grouped
from qrun.errors import QrunError
from qrun.report.screen import NAME, NEXT, STYLES, Piece, Screen
from qrun.report.text import plural

if TYPE_CHECKING:
    from qrun.checking.rules import Finding


def count_levels(levels: Iterable[str]) -> str:
    """The number of each level: ``2 errors, 1 warning``."""
    counts = Counter(levels)
    return ", ".join(plural(counts[level], level) for level in STYLES if counts[level])


Place = Sequence[Piece]
"""The words of a place, such as a file and a node."""


def print_message(
    screen: Screen,
    level: str,
    code: str,
    name: str,
    message: str,
    *,
    where: Sequence[Piece] = (),
    facts: Sequence[tuple[str, str]] = (),
    why: str = "",
    fixes: Sequence[str] = (),
    places: Sequence[Place] = (),
    count: str = "",
) -> None:
    """Prints ``LEVEL CODE name: message``, then ``-->``, ``|`` and ``=`` lines; wrapped if the screen has a width.

    where: of the first place. count: how many there are, in brackets behind the name. places: all, one line each.
    """
    title = " ".join(filter(None, [code, name, count and f"({count})"]))
    screen.wrapped("", "  ", (level, STYLES.get(level, "")), " ", (f"{title}: ", "bold"), message)
    if where:
        _join_places(screen, where)
    for place in places:
        screen.wrapped(("  --> ", "dim"), "      ", *_apart(place))
    width = max((len(label) for label, _ in facts), default=0)
    for label, value in facts:
        screen.wrapped((f"   |  {label:<{width}} ", "dim"), ("   |  " + " " * (width + 1), "dim"), value)
    if why:
        screen.wrapped(("   =  why: ", "dim"), "           ", why)
    for fix in fixes:
        screen.wrapped(("   =  ", "dim"), "           ", (f"fix: {fix}", NEXT))


def print_error(screen: Screen, error: QrunError) -> None:
    told: dict[str, Any] = {key: getattr(error, key) for key in ("where", "facts", "why", "fixes")}
    print_message(screen, "error", error.code, error.name, error.message, **told)


def _join_places(screen: Screen, where: Sequence[Piece]) -> None:
    """Prints the places on one line, or one per line if they are too long together."""
    words = [part if isinstance(part, str) else part[0] for part in where]
    if screen.width is None or len("  --> " + "  ".join(words)) <= screen.width:
        screen.line(("  --> ", "dim"), *_apart(where))
        return
    screen.wrapped(("  --> ", "dim"), "      ", where[0])
    for place in where[1:]:
        screen.wrapped("      ", "      ", place)


def _apart(place: Place) -> list[Piece]:
    """The words with two spaces between them."""
    return [piece for part in place for piece in ("  ", part)][1:]


def print_finding(screen: Screen, finding: Finding, label: str) -> None:
    """Prints a rule's finding in the same form as an error."""
    print_blocks(screen, [(label, finding)], every=True)


MOST = 4
"""Nodes that a block of several findings names."""


def print_blocks(screen: Screen, found: Sequence[tuple[str, Finding]], *, every: bool) -> None:
    """Prints findings as blocks, with a line between them; those that say the same of several places are one block.

    found: each with the path of its model. every: name all places, one per line, else the first ones.
    """
    for number, alike in enumerate(grouped((_said(finding), (path, finding)) for path, finding in found).values()):
        if number:
            screen.line()
        _print_alike(screen, alike, every)


def _said(finding: Finding) -> tuple[str, ...]:
    """What a finding says, without the numbers and names of its own node and tensor."""
    text = finding.message
    for name in filter(None, (finding.node, tensor_name(finding))):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "@", text)
    text = re.sub(r"-?\d[\d.]*", "#", COUNTED.sub("", text))
    return finding.rule, finding.level, text, finding.why, finding.fix


def _print_alike(screen: Screen, found: Sequence[tuple[str, Finding]], every: bool) -> None:
    """Prints findings that say the same as one block, with the facts of the first of them."""
    label, first = found[0]
    facts = (("tensor", first.tensor), ("expected", first.expected), ("got", first.got))
    told: dict[str, Any] = {
        "facts": [(name, value) for name, value in facts if value],
        "why": first.why,
        "fixes": [first.fix] if first.fix else [],
    }
    if len(found) > 1:
        told["count"] = _count_places(found)
    if len(found) > 1 and first.node and not every:
        told["facts"] = [("first", _node(first)), *told["facts"]]
    if len(found) > 1 and every:
        told["places"] = [_with_others(path, finding) for path, finding in found]
    else:
        told["where"] = _where(label, first) if len(found) == 1 else [_places_text(found)]
    message = first.message if len(found) == 1 else COUNTED.sub("", first.message)
    print_message(screen, first.level, first.rule, first.name, message, **told)


COUNTED = re.compile(r", and \d+ more nodes? like it\b.*| \(\d+ nodes?\b[^)]*\)", re.DOTALL)
"""What counts the nodes in a message: ``, and 3 more nodes like it``, `` (4 nodes)``."""


def _where(label: str, finding: Finding) -> list[Piece]:
    return [*([label] if label else []), *([(_node(finding), NAME)] if finding.node else [])]


def _with_others(label: str, finding: Finding) -> list[Piece]:
    return [*_where(label, finding), *([(f"and {', '.join(finding.others)}", NAME)] if finding.others else [])]


def _node(finding: Finding) -> str:
    """``node 3 conv (QLinearConv-10)``."""
    return f"{finding.numbered} ({finding.op})" if finding.op else finding.numbered


def _count_places(found: Sequence[tuple[str, Finding]]) -> str:
    """``14 nodes in 6 models``."""
    models, nodes = len({path for path, _ in found}), sum(1 + len(finding.others) for _, finding in found)
    noun = "node" if all(finding.node for _, finding in found) else "place"
    return f"{plural(nodes, noun)} in {plural(models, 'model')}"


def _places_text(found: Sequence[tuple[str, Finding]]) -> str:
    """``a.onnx conv1, conv2; b.onnx stem; … 11 more (-v lists them)``."""
    shown = grouped((path, finding.node) for path, finding in found[:MOST])
    parts = [f"{path} {', '.join(filter(None, names))}".rstrip() for path, names in shown.items()]
    left = sum(1 + len(finding.others) for _, finding in found) - len(found[:MOST])
    return "; ".join([*parts, *([f"… {left} more (-v lists them)"] if left else [])])


def print_findings(screen: Screen, findings: Sequence[Finding], label: str, verbose: bool) -> None:
    """Prints findings as blocks if verbose, else one line per rule, which names the first node and tensor."""
    if verbose:
        print_blocks(screen, [(label, finding) for finding in findings], every=True)
        return
    for rule, (first, *others) in grouped((finding.rule, finding) for finding in findings).items():
        more = f" (and {len(others)} more)" if others else ""
        text = f"{_place(screen, first)}{_with_tensor(first)}{more}"
        lead = (rule, "bold"), " ", (f"{first.level:<7}", STYLES[first.level]), "  "
        screen.wrapped("  ", " " * (12 + len(rule)), *lead, text)


def _place(screen: Screen, finding: Finding) -> str:
    if not finding.node:
        return ""
    name = finding.node if screen.width is None else screen.shorten(finding.node, screen.width // 2)
    return f"{replace(finding, node=name).numbered}: "


TENSOR = re.compile(r"(?P<name>.+?)(\[[\d,]*\])? \((input \d+, (?P<param>\w+)|output\b).*\)", re.DOTALL)
"""Finding.tensor in the form that rules write: ``s[3] (input 1, x_scale, read by 2 nodes)`` or ``y (output)``."""


def tensor_name(finding: Finding) -> str:
    """The name alone of a finding's tensor."""
    found = TENSOR.fullmatch(finding.tensor)
    return found["name"] if found else re.split(r" \(|,", finding.tensor, maxsplit=1)[0]


def _with_tensor(finding: Finding) -> str:
    """The message with the tensor's name inserted: ``x_scale (tensor s) is nan``."""
    found, name = TENSOR.fullmatch(finding.tensor), tensor_name(finding)
    if not name or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", finding.message):
        return finding.message
    param = rf"(?<!\w){re.escape(found['param'])}(\[[\d,]*\])?(?!\w)" if found and found["param"] else "$^"
    named, count = re.subn(param, lambda m: f"{m[0]} (tensor {name})", finding.message, count=1)
    return named if count else f"{finding.message} (tensor {name})"
