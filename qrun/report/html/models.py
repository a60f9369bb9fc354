"""Which model the reports of a page are of: all of them must be of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from qrun.comparing.documents import Item
from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.report.html.read import items, text
from qrun.report.text import SHORT

Document = tuple[str, Item]
"""The NAME of a document's schema ``qrun/NAME/1.x``, and its content."""
MEASURED = ("profile", "run", "compare")
"""Kinds of documents of one model each, the first to be asked which it is."""


@frozen
class Named:
    """A model as a document names it; "" for what it does not tell."""

    path: str
    sha256: str

    @classmethod
    def of(cls, record: Item) -> Named:
        return cls(text(record, "path"), text(record, "sha256"))

    def __str__(self) -> str:
        return f"{self.path or 'a model without a path'}{f', sha256 {self.sha256[:SHORT]}' if self.sha256 else ''}"

    def is_the(self, other: Named) -> bool:
        """The same SHA-256, or where one has none, the same path, as far as that is known."""
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return self.path == other.path or not self.path or not other.path


def records(kind: str, item: Item) -> list[Item]:
    """What a document says about its model; a check has several."""
    if kind == "check":
        return list(items(item, "models"))
    found = (item.find("model") or item.find("quantized")) if kind in MEASURED else None
    return [] if found is None else [found]


def of_model(found: Iterable[Item], model: Named) -> list[Item]:
    """Those of the records that are of this model: under its path, or of its content if none is."""
    same = [record for record in found if Named.of(record).is_the(model)]
    return [record for record in same if text(record, "path") == model.path] or same


def page_model(documents: Sequence[Document]) -> Named | None:
    """The model of a page; None if only checks tell of models. Raises CallError if two documents have no model in common."""
    told = [(kind, item, records(kind, item)) for kind, item in documents]
    told = [each for each in sorted(told, key=lambda each: _rank(each[0])) if each[2]]
    if not told:
        return None
    first_kind, first, mine = told[0]
    for kind, item, others in told[1:]:
        if not any(of_model(others, Named.of(record)) for record in mine):
            raise _different(first, mine, kind, item, others)
    return Named.of(mine[0]) if first_kind in MEASURED else None


def _rank(kind: str) -> int:
    return MEASURED.index(kind) if kind in MEASURED else len(MEASURED)


def _different(first: Item, mine: Sequence[Item], kind: str, item: Item, others: Sequence[Item]) -> CallError:
    facts = [
        (number, f"{document.source}: {'; '.join(str(Named.of(record)) for record in found)}")
        for number, document, found in (("first", first, mine), ("second", item, others))
    ]
    fixes = [f"one page for each: qrun report {quote(d.source)} -o {name}.html"
             for d, name in ((first, "first"), (item, "second"))]  # fmt: skip
    if path := text(mine[0], "path"):
        fixes.append(f"qrun {kind} {quote(path)} --json > OTHER.json goes with {first.source}")
    return CallError("QR005", "these reports are of different models", where=[first.source, item.source],
                     facts=facts, fixes=fixes)  # fmt: skip
