"""The catalog of all codes that a finding can have, those of rules and others in one form; and the choice that
``--select`` and ``--ignore`` make among them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from qrun.checking.deploy import LEVEL_OF, NOT_QUANTIZED, rule_id, says_text
from qrun.checking.rules import RULES
from qrun.checking.targets import DeployTarget, TargetRule, find, names
from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.report.codes import CODES, nearest

STOPS = frozenset(code for code in CODES if code.startswith(("QR0", "QR1")) or code == "QR505")
"""The codes for files that cannot be read and for vectors that did not run."""


@frozen
class CatalogEntry:
    """A rule, or a code of the loader, a kernel or the vectors.

    text: its meaning and why it matters, in paragraphs; fix and spec may be empty.
    """

    id: str
    name: str
    level: str
    summary: str
    text: str
    fix: str = ""
    spec: str = ""


@cache
def catalog() -> dict[str, CatalogEntry]:
    """All entries by id, in order."""
    found = [
        CatalogEntry(id, name, "error", f"{text.partition('. ')[0].rstrip('.')}.", text)
        for id, (name, text) in CODES.items()
    ]
    for rule in RULES.values():
        why = rule.sections.get("Why is this bad?", "")
        before = rule.doc.partition("Why is this bad?")[0]
        text = "\n\n".join(" ".join(part.split()) for part in f"{before}\n\n{why}".split("\n\n") if part.strip())
        found.append(
            CatalogEntry(rule.id, rule.name, rule.level, " ".join(rule.summary.split()), text, rule.fix, rule.spec)
        )
    return {entry.id: entry for entry in sorted(found, key=lambda e: e.id)}


def entry(id: str, targets: Sequence[DeployTarget] = ()) -> CatalogEntry:
    """The entry of a code, or of a rule of one of these targets or of a target that qrun knows: ``tensorrt/axis-0``."""
    return catalog().get(id) or _of_target(id, targets) or CatalogEntry(id, id.lower(), "error", id, id)


def _of_target(id: str, targets: Sequence[DeployTarget]) -> CatalogEntry | None:
    name, _, short = id.rpartition("/")
    target = next((t for t in targets if t.id == name), None)
    if target is None and name in names():
        target = find(name)
    known = () if target is None else (*target.rules, NOT_QUANTIZED)
    rule = next((rule for rule in known if rule.id == short), None)
    return None if rule is None or target is None else target_entry(target, rule)


def target_entry(target: DeployTarget, rule: TargetRule) -> CatalogEntry:
    """The entry of a target's rule. Its name is the consequence, as in findings."""
    parts = [rule.cause, rule.why, says_text(rule)]
    text = "\n\n".join(f"{part}." for part in parts if part)
    return CatalogEntry(rule_id(target, rule), rule.otherwise, LEVEL_OF[rule.otherwise], rule.cause, text, rule.fix)


def select(selected: Sequence[str], ignored: Sequence[str]) -> frozenset[str]:
    """The ids chosen by `selected` (ids, prefixes, names, separated by commas; empty: all), without the ignored.

    Codes that stop a model from being read, or a vector from being replayed, stay chosen unless ignored: no selection
    makes such a file look well. Raises CallError if nothing is left of what was chosen.
    """
    chosen = _ids(selected, "select") if _words(selected) else frozenset(catalog())
    left_out = _ids(ignored, "ignore")
    if not chosen - left_out:
        given = {"select": _words(selected), "ignore": _words(ignored)}
        facts = [(option, ", ".join(words)) for option, words in given.items() if words]
        fixes = ["select more or ignore less; qrun explain lists all codes"]
        message = "--select and --ignore leave no rule, so nothing would be checked"
        raise CallError("QR005", message, facts=facts, fixes=fixes)
    return (chosen | STOPS) - left_out


def selected_ids(selected: Sequence[str], ignored: Sequence[str]) -> frozenset[str]:
    """The ids that `selected` names, without the ignored; empty if nothing is selected."""
    return _ids(selected, "select") - _ids(ignored, "ignore")


def _words(given: Sequence[str]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _ids(given: Sequence[str], option: str) -> frozenset[str]:
    found: set[str] = set()
    for word in _words(given):
        ids = {e.id for e in catalog().values() if e.id.startswith(word.upper()) or e.name == word.lower()}
        if not ids or word.upper() in ("Q", ""):
            raise _unknown(word, option)
        found |= ids
    return frozenset(found)


def _unknown(word: str, option: str) -> CallError:
    near = nearest(word, [*catalog(), *(e.name for e in catalog().values())], 2)
    return CallError(
        "QR005",
        f"--{option} {word}: no rule has this id, prefix or name",
        facts=[("expected", "ids, prefixes or names such as QR301, QR3, scale-shape")],
        fixes=[f"did you mean {' or '.join(near)}?"] if near else ["qrun explain lists all codes"],
    )
