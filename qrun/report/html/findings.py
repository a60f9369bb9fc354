"""The sections with findings by level and rule, and with the explanation of each rule."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qrun.checking.rules import LEVELS, RULES, Finding
from qrun.report.catalog import entry
from qrun.report.check import LABELS
from qrun.report.grid import Column, Grid
from qrun.report.html.collect import CheckedModel
from qrun.report.html.markup import Markup, facts, join, section, table, tag
from qrun.report.message import count_levels
from qrun.report.text import plural

Placed = tuple[Finding, str]
"""A finding, and the path of its model if there are several."""
NAMES = ("tensor",)


def findings_section(checked: CheckedModel, rows: Collection[int]) -> Markup:
    """rows: indices of the nodes that have a row on the page."""
    found = list(zip(checked.findings, checked.paths, strict=True))
    parts: list[Markup] = []
    for level in LEVELS:
        of_level = [pair for pair in found if pair[0].level == level]
        if of_level:
            parts.append(tag("h3", plural(len(of_level), level)))
        parts += [
            _block([pair for pair in of_level if pair[0].rule == rule], rows)
            for rule in dict.fromkeys(f.rule for f, _ in of_level)
        ]
    return section("findings", "Checks", _judge(checked), parts)


def counts(checked: CheckedModel) -> str:
    """``1 error, 2 warnings``, or ``no findings``."""
    return count_levels(f.level for f in checked.findings) or "no findings"


def _judge(checked: CheckedModel) -> str:
    parts = [f"{plural(checked.rules, 'rule')} ran"] if checked.rules else []
    vectors = checked.vectors
    if vectors:
        states = ", ".join(f"{n} {state}" for state, n in vectors.items())
        parts.append(f"{plural(sum(vectors.values()), 'recorded vector')}: {states}")
    if not checked.findings:
        parts.append("nothing was found")
    return "; ".join(parts) + "." if parts else ""


def _block(found: Sequence[Placed], rows: Collection[int]) -> Markup:
    """The findings of one rule: what they share is shown once, the rest in a table if there are several."""
    first, path = found[0]
    link = tag("a", f"{first.rule} {first.name}", href=f"#{first.rule}")
    title = join([tag("span", first.level, class_=first.level), " ", link])
    single = len(found) == 1
    shared = [key for key in LABELS if len({getattr(f, key) for f, _ in found}) == 1]
    parts = [tag("h4", title, "" if single else f" · {len(found)}×")]
    pairs = [(key, tag("code", told) if key in NAMES else told) for key in shared if (told := getattr(first, key))]
    if single:
        parts.append(tag("p", first.message))
        pairs = [*([("node", tag("code", _node(found[0], rows)))] if first.node or path else []), *pairs]
    else:
        columns = [
            Column("node", shrink=1, cell=lambda pair: _node(pair, rows)),
            Column("what", wrap=True, cell=lambda pair: pair[0].message),
            *(_column(key) for key in LABELS if key not in shared),
        ]
        parts.append(table(f"findings of {first.rule}", Grid.of(columns, found), sortable=False))
    if pairs:
        parts.append(facts(pairs))
    return tag("article", parts, class_=f"finding {first.level}")


def _column(key: str) -> Column:
    return Column(key, cell=lambda pair: getattr(pair[0], key), shrink=int(key in NAMES), wrap=key not in NAMES)


def _node(placed: Placed, rows: Collection[int]) -> Markup:
    """The node's number, linked to its row if it has one, its name and operator."""
    finding, path = placed
    parts: list[str] = [f"{path}: "] if path else []
    if (index := finding.index) is not None:
        parts += [tag("a", f"#{index}", href=f"#n{index}") if index in rows else f"#{index}", " "]
    return join([*parts, finding.node, f" ({finding.op})" if finding.op else ""])


def rules_section(checked: CheckedModel) -> Markup:
    """The explanation of each rule that found something, as in ``qrun explain``."""
    fired = sorted({f.rule for f in checked.findings})
    if not fired:
        return Markup()
    return section("rules", "Rules", "The rules above, as qrun explain prints them.", (_rule(id) for id in fired))


def _rule(id: str) -> Markup:
    known = entry(id)
    parts: list[str] = [tag("p", part) for part in known.text.split("\n\n")]
    if known.fix:
        parts.append(tag("p", "Fix: ", known.fix))
    if known.spec:
        parts.append(tag("p", "Specification: ", tag("a", known.spec, href=known.spec, rel="noreferrer")))
    for heading in ("Bad", "Good"):
        example = RULES[id].sections.get(heading) if id in RULES else None
        if example:
            lines = join((join([line]) for line in example.splitlines()), "\n")
            parts.append(tag("p", f"{heading}:"))
            parts.append(tag("pre", Markup(lines)))
    return tag("details", tag("summary", tag("b", known.id), f" {known.name} · {known.level}"), parts, id=id)
