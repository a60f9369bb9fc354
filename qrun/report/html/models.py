"""Of which model a document is, and which documents are of the same one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from qrun.documents.answers import ModelFile
from qrun.documents.record import Item, decode
from qrun.errors import CallError

Document = tuple[str, Item]
"""The NAME of a document's schema ``qrun/NAME/1.x``, and its content."""
KINDS = ("check", "profile", "run", "compare", "eval")
MEASURED = ("profile", "run", "compare")
"""Kinds of documents of one model each, the first to be asked which it is."""


def items(item: Item | None, key: str) -> Iterable[Item]:
    """The values of a list; none where it is missing."""
    found = item.find(key) if item else None
    return found or ()


def by_model(documents: Sequence[Document]) -> list[list[Document]]:
    """The documents of each model, in the order in which the models come.

    A second document of the same kind and model stands for itself, as one before a change and one after. What tells of
    several models (a check of a folder, an evaluation) goes with each of them; a comparison of several models with a
    first one is one comparison for each.
    Raises CallError if a document of several models has none in common with the others.
    """
    several, groups = [], list[list[Document]]()
    for kind, item in (one for document in documents for one in _each(*document)):
        mine = records(kind, item)
        if len(mine) > 1:
            several.append((kind, item))
            continue
        group = next((g for g in groups if kind not in dict(g) and _same(records(*g[0]), mine)), None)
        if group is None:
            groups.append([(kind, item)])
        else:
            group.append((kind, item))
    if not groups:
        return [several]
    for kind, item in several:
        fitting = [g for g in groups if kind not in dict(g) and _same(records(*g[0]), records(kind, item))]
        if not fitting:
            raise _different(groups[0][0][1], records(*groups[0][0]), kind, item, records(kind, item))
        for group in fitting:
            group.append((kind, item))
    return groups


def _each(kind: str, item: Item) -> list[Document]:
    """The comparisons of a document that compares several models with a first one; else the document."""
    if kind != "compare" or not item.find("candidates"):
        return [(kind, item)]
    return [(kind, Item({**one.value, "kind": "models"}, one.source, one.place)) for one in item["candidates"]]


def _same(first: Sequence[ModelFile], second: Sequence[ModelFile]) -> bool:
    """Whether they have a model in common; what tells of no model goes with any."""
    return not first or not second or any(a.is_the(b) for a in first for b in second)


def records(kind: str, item: Item) -> list[ModelFile]:
    """What a document says about its model; a check has several."""
    if kind == "check":
        return [decode(ModelFile, m) for m in items(item, "models")]
    if kind == "eval":
        return [ModelFile(m["label"].text, m["sha256"].text) for m in items(item, "models")]
    found = (item.find("model") or item.find("quantized")) if kind in MEASURED else None
    return [] if found is None else [decode(ModelFile, found)]


def of_model(found: Iterable[Item], model: ModelFile) -> list[Item]:
    """Those of the models of a check that are this one: under its path, or of its content if none is."""
    same = [(item, record) for item in found if (record := decode(ModelFile, item)).is_the(model)]
    return [item for item, record in same if record.path == model.path] or [item for item, _ in same]


def page_model(documents: Sequence[Document]) -> ModelFile | None:
    """The model of a page; None if only checks tell of models.
    Raises CallError if two documents have no model in common."""
    told = [(kind, item, records(kind, item)) for kind, item in documents]
    ranks = {kind: rank for rank, kind in enumerate(MEASURED)}
    told = [each for each in sorted(told, key=lambda each: ranks.get(each[0], len(ranks))) if each[2]]
    if not told:
        return None
    first_kind, first, mine = told[0]
    for kind, item, others in told[1:]:
        if not _same(mine, others):
            raise _different(first, mine, kind, item, others)
    return mine[0] if first_kind in MEASURED else None


def _different(first: Item, mine: Sequence[ModelFile], kind: str, item: Item, others: Sequence[ModelFile]) -> CallError:
    facts = [
        (number, f"{document.source}: {'; '.join(map(str, found))}")
        for number, document, found in (("first", first, mine), ("second", item, others))
    ]
    fixes = [
        f"one page for each: qrun report {quote(d.source)} -o {name}.html"
        for d, name in ((first, "first"), (item, "second"))
    ]
    if path := mine[0].path:
        fixes.append(f"qrun {kind} {quote(path)} --json > OTHER.json goes with {first.source}")
    where = [first.source, item.source]
    return CallError("QR005", "these reports are of different models", where=where, facts=facts, fixes=fixes)
