"""The tokens that a decoder finds most likely next, by name."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from qrun.documents.answers import NamedClass
from qrun.errors import CallError, QrunError
from qrun.io.classes import read_classes
from qrun.ir import Array, Model
from qrun.ir.types import describe
from qrun.report.classes import MOST_ROWS, TOP
from qrun.report.grid import Column, Grid
from qrun.report.screen import Screen
from qrun.report.stats import ROWS
from qrun.report.text import percent, plural

TOKENIZER = "tokenizer.json"
"""The file beside a model that has the names of its tokens."""


def token_names(model: Model, path: str) -> tuple[Sequence[str], str]:
    """The names of the tokens: of the file at this path, or else of tokenizer.json beside the model; () if there is
    none. Also why that one could not be read. Raises CallError for a file that was asked for."""
    if path:
        return read_classes(path), ""
    beside = None if model.path is None else model.path.parent / TOKENIZER
    if beside is None or not beside.is_file():
        return (), ""
    try:
        return read_classes(str(beside)), ""
    except QrunError as error:
        return (), f"tokens have no names: {error.message}"


def next_tokens(logits: Array, names: Sequence[str], source: str) -> tuple[tuple[NamedClass, ...], ...]:
    """For each sequence, the TOP tokens with the largest logits after its last token, the best first; of equal logits
    the first. Scores are the probabilities of a softmax in float64.

    logits: [sequences, length, words]. names: of the first words; source: of the names, for messages. Raises CallError
    if there are more names than words.
    """
    if len(names) > logits.shape[-1] and source:
        facts = [("expected", f"at most {logits.shape[-1]} names"), ("got", f"{len(names)} names")]
        fixes = ["give the vocabulary of this model"]
        what = f"{source} has more names than the logits {describe(logits)}"
        raise CallError("QR003", what, where=[source], facts=facts, fixes=fixes)
    if not logits.size:
        return ()
    made = []
    for row in logits[:MOST_ROWS, -1].astype(np.float64):
        with np.errstate(invalid="ignore", over="ignore"):
            shares = np.exp(row - row.max())
            shares /= shares.sum()
        order = np.argsort(-row, kind="stable")[:TOP].tolist()
        made.append(tuple(NamedClass(at, names[at] if at < len(names) else "", float(shares[at])) for at in order))
    return tuple(made)


def print_tokens(screen: Screen, found: Sequence[Sequence[NamedClass]]) -> None:
    """Prints a table of the most likely next tokens of the first sequences."""
    rows = [(at, rank, best) for at, row in enumerate(found[:ROWS]) for rank, best in enumerate(row)]
    named = any(best.name for _, _, best in rows)
    columns = [
        Column("row", right=True, cell=lambda row: "" if row[1] else str(row[0])) if len(found) > 1 else None,
        Column("token", right=True, cell=lambda row: str(row[2].index)),
        Column("text", shrink=1, cell=lambda row: json.dumps(row[2].name, ensure_ascii=False)) if named else None,
        Column("probability", right=True, cell=lambda row: percent(row[2].score)),
    ]
    screen.line()
    screen.line(("Most likely next tokens", "bold"))
    screen.grid(Grid.of(columns, rows))
    if len(found) > ROWS:
        screen.line(f"  {screen.ellipsis} {plural(len(found) - ROWS, 'more row')}   --json")
