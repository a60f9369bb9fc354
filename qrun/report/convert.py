"""The screen and the JSON of ``qrun convert``: the groups, what each of them changes, and what stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qrun.converting.conversion import DIFFERS, EQUAL, NOT_EQUAL, TIES, Agreement, ConvertedModel
from qrun.converting.trial import GroupTrial, OutputTrial, Trial
from qrun.declare import grouped
from qrun.report.grid import Column, Grid
from qrun.report.screen import BAD, GOOD, NAME, OPEN
from qrun.report.sheet import Block, Sheet, top_rows
from qrun.report.text import number, plural

FORMS = {"qoperator": "integer operators", "qdq": "QDQ groups", "integer": "integer-only operators"}
_DONE = {EQUAL: "bit-equal", TIES: "may differ by one next to a tie", DIFFERS: "may differ by more"}


def convert_sheet(conversion: ConvertedModel, trial: Trial, top: int | None) -> Sheet:
    """top: groups to list, None for all."""
    columns = [
        Column("group", shrink=1, style=NAME, cell=lambda each: each.group.name),
        Column("becomes", cell=lambda each: each.group.becomes.rpartition("::")[2]),
        Column("codes", cell=lambda each: _kind(each.group.verdict)),
        Column("differ here", right=True, cell=_differing),
        Column("proof", wrap=True, below=True, cell=lambda each: each.group.verdict.reason),
    ]
    blocks = top_rows("Groups", columns, trial.groups, top, "group", folds=True)
    blocks += _left(conversion)
    blocks += [Block("Outputs, whole models", facts=[(each.name, _output(each)) for each in trial.outputs])]
    style = BAD if trial.broken else GOOD if trial.outputs else OPEN
    return Sheet(blocks if trial.outputs else blocks[:-1], _verdict(conversion, trial), style, title="qrun convert")


def _verdict(conversion: ConvertedModel, trial: Trial) -> str:
    """The answer as a sentence."""
    groups = conversion.groups
    if not conversion.form:
        changed = sum(each.differing > 0 for each in trial.outputs)
        same = f"{plural(changed, 'output')} changed" if changed else "the outputs are the same"
        return f"converted: {plural(len(conversion.model.nodes), 'node')}; {same}"
    form = FORMS[conversion.form]
    if not groups:
        strict = "bit-equal " * any(each.reason.startswith(NOT_EQUAL) for each in conversion.left)
        return f"nothing to convert: no quantized group can become {strict}{form}"
    if trial.broken:
        names = ", ".join(each.group.name for each in trial.broken[:3])
        return f"differs: {plural(len(trial.broken), 'group')} by more than the proof says ({names}); this is a bug in qrun"
    counts = Counter(group.verdict.kind for group in groups)
    kinds = ", ".join(f"{counts[kind]} {text}" for kind, text in _DONE.items() if counts[kind])
    left = f"; {plural(len(conversion.left), 'node')} left as written" if conversion.left else ""
    return f"converted: {plural(len(groups), 'group')} to {form}: {kinds}{left}"


def _kind(verdict: Agreement) -> str:
    """``bit-equal``, ``1 apart next to ties``, ``up to 3 apart``."""
    if verdict.kind == EQUAL:
        return "bit-equal"
    return (
        "1 apart next to ties"
        if verdict.kind == TIES
        else f"up to {verdict.bound} apart"
        if verdict.bound
        else "no bound"
    )


def _differing(each: GroupTrial) -> str:
    """``12 of 4,096``, with the largest difference if it is not 1."""
    return f"{each.differing:,} of {each.total:,}" + (f", by {each.most}" if each.most > 1 else "")


def _left(conversion: ConvertedModel) -> list[Block]:
    """The nodes that stay, by reason."""
    reasons: Mapping[str, Sequence[Any]] = grouped((each.reason, each) for each in conversion.left)
    rows = sorted(reasons.items(), key=lambda row: -len(row[1]))
    columns = [
        Column("nodes", right=True, cell=lambda row: str(len(row[1]))),
        Column("first", shrink=1, style=NAME, cell=lambda row: row[1][0].name),
        Column("operator", cell=lambda row: row[1][0].op.rpartition("::")[2]),
        Column("reason", wrap=True, below=True, cell=lambda row: row[0]),
    ]
    return [Block("Left as written", Grid.of(columns, rows))] if rows else []


def _output(each: OutputTrial) -> str:
    """``equal``, or how many values differ, and by how much."""
    if not each.differing:
        return f"{each.total:,} values, all equal"
    most = f", by up to {number(each.most)}" if each.most is not None else ""
    return f"{each.differing:,} of {each.total:,} values differ{most}"


def convert_fields(conversion: ConvertedModel, trial: Trial, files: Sequence[str]) -> dict[str, Any]:
    """The body of the JSON document; its schema is qrun/schemas/convert-1.0.json."""
    return {
        "form": conversion.form,
        "files": list(files),
        "groups": [_group_fields(each) for each in trial.groups],
        "left": [{"name": each.name, "op": each.op, "reason": each.reason} for each in conversion.left],
        "outputs": [
            {"name": each.name, "differing": each.differing, "total": each.total, "most": each.most}
            for each in trial.outputs
        ],
        "broken": [each.group.name for each in trial.broken],
    }


def _group_fields(each: GroupTrial) -> dict[str, Any]:
    group, verdict = each.group, each.group.verdict
    return {
        "name": group.name,
        "op": group.op,
        "becomes": group.becomes,
        "output": group.output,
        "verdict": {"kind": verdict.kind, "bound": verdict.bound, "reason": verdict.reason},
        "trial": {"differing": each.differing, "total": each.total, "most": each.most},
    }
