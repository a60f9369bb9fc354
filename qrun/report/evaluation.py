"""The report of ``qrun eval``: verdict, one row per model, differences, the samples that differ most, failures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from qrun.checking.rules._rule import join_names
from qrun.declare.frozen import frozen, keys
from qrun.documents.record import encode
from qrun.evaluating.evaluation import Evaluation, ModelScores, Running
from qrun.evaluating.tally import TITLES, PairedDifference, Score
from qrun.ops import integer_engine
from qrun.report.evaluationclasses import class_blocks
from qrun.report.evaluationtokens import position_blocks, token_verdict, units
from qrun.report.grid import Column, Grid
from qrun.report.screen import BAD, GOOD, NAME, OPEN
from qrun.report.sheet import Block, Sheet
from qrun.report.text import decibel, duration, number, percent, plural, short_names

if TYPE_CHECKING:
    from qrun.evaluating.health import TensorHealth
    from qrun.report.progress import Progress

_SHARES = ("top1", "top5", "argmax", "equal", "next_token")
_TENSORS = 5
"""The number of tensors per model whose quantized values are shown."""
_SURE = 0.05
"""A difference counts as significant if McNemar's p is below this."""


@frozen
class Gate:
    """A score that an option requires. expected, got: percent."""

    KEYS = keys("option model expected got passed")

    option: str
    model: str
    expected: float
    got: float

    @property
    def passed(self) -> bool:
        return self.got <= self.expected if self.option == "--max-drop" else self.got >= self.expected

    def __str__(self) -> str:
        """The message if the gate is not passed."""
        got = f"loses {self.got:.2f} points" if self.option == "--max-drop" else f"reaches {percent(self.got / 100, 2)}"
        return f"{self.model} {got} ({self.option} {self.expected:g})"


def evaluation_fields(found: Evaluation, gates: Sequence[Gate]) -> dict[str, Any]:
    """The body of the JSON report."""
    return {**encode(found), "gates": gates}


def evaluation_sheet(found: Evaluation, gates: Sequence[Gate], markdown: bool = False) -> Sheet:
    """Lays out the report. markdown: one row of scores per model, instead of one per score."""
    verdict, style = verdict_of(found)
    missed = [str(gate) for gate in gates if not gate.passed]
    if gates and (lost := _lost(found)):
        missed.insert(0, lost)
    if missed and found.stopped_by is None:
        verdict, style = f"failed: {'; '.join(missed)}", BAD
    elif gates and style is not BAD:
        style = GOOD
    about = [_how(found), *(f"first sample: {text}" for text in found.converted)]
    scores = (
        _beside(found)
        if markdown
        else Grid.of(_columns(found), [(model, score) for model in found.models for score in model.scores])
    )
    exact = any(score.metric == "sqnr_db" and score.value == float("inf") for m in found.models for score in m.scores)
    lines = ["SQNR exact: all elements are equal, so there is no noise and no interval."] if exact else []
    lines += units([score for model in found.models for score in model.scores])
    blocks = [Block("Scores", scores, lines=lines)] if any(m.scores for m in found.models) else []
    names = names_of(found)
    blocks += _differences(found) + class_blocks(found.models, names) + position_blocks(found.models, names)
    blocks += _worst(found) + _health(found) + _failures(found)
    notes = [f"stopped early: {found.stopped}"] if found.stopped else []
    return Sheet(blocks, verdict, style, (), about, notes, "qrun eval")


def verdict_of(found: Evaluation) -> tuple[str, str]:
    """The answer as a sentence, and its style."""
    if (last := found.stopped_by) is not None:
        return f"failed: stopped at {last.sample}, which could not be {'read' if last.side is None else 'run'}", BAD
    if found.failed >= found.samples:
        return f"failed: none of {plural(found.samples, 'sample')} could be run", BAD
    verdict, style = _scored(found)
    return (f"{_lost(found)}; {verdict}", OPEN) if found.failed else (verdict, style)


def _lost(found: Evaluation) -> str:
    """``5 of 10 samples could not be read``; "" if none failed."""
    unreadable = found.samples - found.readable
    how = "read" if unreadable == found.failed else "read or run" if unreadable else "run"
    return f"{found.failed} of {plural(found.samples, 'sample')} could not be {how}" if found.failed else ""


def _scored(found: Evaluation) -> tuple[str, str]:
    """The verdict about the samples that ran, and its style."""
    if found.tokens:
        return token_verdict(found, names_of(found)), OPEN
    apart = [
        (d.value, place, d) for place, model in enumerate(found.models) for d in model.differences if d.metric == "top1"
    ]
    if apart:
        _, place, worst = min(apart, key=lambda item: item[:2])
        return sentence(found, place, worst) + _others([value for value, _, d in apart if d is not worst]), OPEN
    names = names_of(found)
    scored = [
        (found.score(place, "top1") or found.agreement(place), name)
        for place, name in enumerate(names[: len(found.models)])
    ]
    known = [(score, name) for score, name in scored if score is not None]
    if known:
        score, label = min(known, key=lambda item: item[0].value)
        name = "accuracy" if score.metric == "top1" else f"agreement with {names[-1]}"
        whole = score.value == 1 and score.metric != "top1"
        more = f", the lowest of {len(known)} models" if len(known) > 1 else ""
        return f"{name}: {label} {share(score)}{more}", GOOD if whole else OPEN
    noise = [(s.value, n) for n, m in zip(names, found.models, strict=False) for s in m.scores if s.metric == "sqnr_db"]
    if noise:
        value, label = min(noise)
        more = f", the lowest of {len(found.models)} models" if len(found.models) > 1 else ""
        if value == float("inf"):
            return f"equal: {label} and {names[-1]} in every element", GOOD
        return f"{label}: {decibel(value)} SQNR against {names[-1]}{more}", OPEN
    return f"evaluated: {plural(found.samples - found.failed, 'sample')}", OPEN


def _others(values: Sequence[float]) -> str:
    """The other models' differences in top-1; text to append to the sentence about the worst model."""
    if not values:
        return ""
    low, high = (f"{100 * value:+.2f}" for value in (min(values), max(values)))
    span = low if low == high else f"{low} to {high}"
    return f"; {plural(len(values), 'other model')}: {span} points"


def sentence(found: Evaluation, place: int, d: PairedDifference) -> str:
    """``int8's top-1 is 0.60 points below float's (0.20 to 1.00); 31 samples lost, 13 gained``."""
    names = names_of(found)
    points, low, high = ((value or 0.0) * 100 for value in (d.value, d.low, d.high))
    word = "below" if points < 0 else "above"
    changed = f"{plural(d.lost or 0, 'sample')} lost, {d.won or 0} gained"
    equal = d.p is not None and d.p >= _SURE
    if d.p is not None and equal != (low <= 0 <= high):  # the interval is of another method (Newcombe's)
        changed += f"; McNemar's p is {d.p:.2g}"
    if equal:
        size = f"{abs(points):.2f} points {word} {names[d.to]}'s" if points else f"the same as {names[d.to]}'s"
        gap = f"{names[place]}'s top-1 is {size} ({low:+.2f} to {high:+.2f})"
        return f"no significant difference: {gap}; {changed}"
    ends = (-high, -low) if points < 0 else (low, high)
    gap = f"{names[place]}'s top-1 is {abs(points):.2f} points {word} {names[d.to]}'s"
    return f"{'worse' if points < 0 else 'better'}: {gap} ({ends[0]:.2f} to {ends[1]:.2f}); {changed}"


def share(score: Score) -> str:
    """``96.1 % (95.1 to 96.9)``."""
    low, high = (100 * value if value is not None else 0.0 for value in (score.low, score.high))
    return f"{percent(score.value, 2)} ({low:.2f} to {high:.2f})"


def names_of(found: Evaluation) -> list[str]:
    """The models' paths, cut to the folders that tell them apart; last, likewise, the name of what they are compared
    with."""
    return short_names([*(model.label for model in found.models), found.against])


def _how(found: Evaluation) -> str:
    what = f"{plural(found.samples, 'sequence')}, {plural(found.tokens, 'predicted token')}" if found.tokens else ""
    parts = [f"{what or plural(found.samples, 'sample')} of {found.source}"]
    if found.arith != "exact":
        parts.append(f"arith {found.arith}")
    if found.against:
        parts.append(f"against {names_of(found)[-1]}")
    if found.resumed:
        parts.append(f"{found.resumed} from an earlier call")
    times = [
        (name, duration(seconds * 1e9))
        for name, seconds in zip(names_of(found), found.seconds_per_sample, strict=False)
        if seconds is not None
    ]
    if times:
        told = [f"{time} ({name})" if len(times) > 1 else time for name, time in times]
        parts.append(f"{', '.join(told)} a {'token' if found.tokens else 'sample'}")
    if found.workers > 1:
        parts.append(f"{found.workers} processes")
    return "; ".join(parts)


def value_text(score: Score) -> str:
    if score.metric in _SHARES:
        return percent(score.value, 2)
    return decibel(score.value) if score.metric == "sqnr_db" else number(score.value)


def limits_text(score: Score) -> str:
    if score.low is None or score.high is None:
        return "-"
    if score.metric in _SHARES:
        return f"{100 * score.low:.2f} to {100 * score.high:.2f}"
    if score.metric == "sqnr_db":
        return f"{score.low:.1f} to {score.high:.1f}"
    return f"{number(score.low)} to {number(score.high)}"


def _columns(found: Evaluation) -> list[Column]:
    names = dict(zip(map(id, found.models), names_of(found), strict=False))
    first = {id(model): model.scores[0] for model in found.models if model.scores}
    return [
        Column("model", shrink=2, cell=lambda row: names[id(row[0])] if row[1] is first[id(row[0])] else ""),
        *_COLUMNS,
        Column("tokens" if found.tokens else "samples", right=True, optional=1, cell=lambda row: str(row[1].count)),
    ]


def _beside(found: Evaluation) -> Grid:
    """One row per model and one column per metric: the value, and its interval in brackets."""
    names = names_of(found)
    scored = [{(s.metric, s.output): s for s in model.scores} for model in found.models]

    def shown(score: Score | None) -> str:
        if score is None:
            return ""
        limits = limits_text(score)
        return value_text(score) if limits == "-" else f"{value_text(score)} ({limits})"

    titles = _metrics(found, TITLES)
    columns = [Column("model", shrink=1), *(Column(title, right=True) for title in titles.values())]
    return Grid(columns, [[n, *(shown(row.get(key)) for key in titles)] for n, row in zip(names, scored, strict=False)])


def _metrics(found: Evaluation, titles: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The title of each metric of each output, with `` of OUTPUT`` if there are several outputs."""
    keys = dict.fromkeys((score.metric, score.output) for model in found.models for score in model.scores)
    several = len({output for _, output in keys if output}) > 1
    return {
        (metric, output): titles.get(metric, metric) + (f" of {output}" if several and output else "")
        for metric, output in keys
    }


_COLUMNS = [
    Column("metric", shrink=1, cell=lambda row: TITLES.get(row[1].metric, row[1].metric)),
    Column("output", shrink=1, cell=lambda row: row[1].output),
    Column("value", right=True, cell=lambda row: value_text(row[1])),
    Column("95 % interval", right=True, cell=lambda row: limits_text(row[1])),
]


def _differences(found: Evaluation) -> list[Block]:
    names = names_of(found)
    rows = [(place, model, d) for place, model in enumerate(found.models) for d in model.differences]
    if not rows:
        return []
    columns: list[Column | None] = [
        Column("model", shrink=2, cell=lambda row: names[row[0]]),
        Column("compared with", shrink=1, cell=lambda row: names[row[2].to]),
        Column("metric", shrink=1, cell=lambda row: TITLES.get(row[2].metric, row[2].metric)),
        Column("difference", right=True, cell=lambda row: points_text(row[2], row[2].value)),
        Column(
            "95 % interval",
            right=True,
            cell=lambda row: (
                "-"
                if row[2].low is None
                else f"{points_text(row[2], row[2].low)} to {points_text(row[2], row[2].high)}"
            ),
        ),
    ]
    if not found.tokens:
        columns += [
            Column("lost", right=True, optional=1, cell=lambda row: number(row[2].lost)),
            Column("gained", right=True, optional=1, cell=lambda row: number(row[2].won)),
            Column("p", right=True, optional=2, cell=lambda row: "-" if row[2].p is None else f"{row[2].p:.2g}"),
        ]
    legends = {"p": "p: chance of a split this uneven between equally good models (McNemar)."}
    return [Block("Differences on the same samples", Grid.of(columns, rows), legends=legends)]


def points_text(difference: PairedDifference, value: float) -> str:
    return f"{100 * value:+.2f}" if difference.metric == "top1" else f"{value:+.4g}"


def _worst(found: Evaluation) -> list[Block]:
    made = []
    names = names_of(found)
    for name, model in zip(names, found.models, strict=False):
        if model.worst:
            columns = [
                Column("sample", shrink=1, cell=lambda apart: apart.sample),
                Column("argmax", cell=lambda apart: {True: "same", False: "differs", None: "-"}[apart.same_argmax]),
                Column(
                    "SQNR", right=True, cell=lambda apart: decibel(apart.sqnr_db) if apart.sqnr_db is not None else "-"
                ),
                Column("max abs", right=True, cell=lambda apart: number(apart.max_abs)),
            ]
            title = f"Samples on which {name} differs most from {names[-1]}"
            made.append(
                Block(title, Grid.of(columns, model.worst), lines=[line] if (line := _next(found, model)) else [])
            )
    return made


def _next(found: Evaluation, model: ModelScores) -> str:
    """The command that looks into the worst sample; "" if no command line can read that sample."""

    given = " ".join([*(f"-i {quote(spec)}" for spec in model.worst[0].inputs), *map(quote, found.options)])
    own, other = quote(model.label), quote(found.against)
    if not model.worst[0].inputs:
        return ""
    if found.against in ("ort", "onnx-ref"):
        other = "ort-optimized" if found.against == "ort" else other  # eval runs its default session
        return f"qrun compare {own} {given} --against {other}   shows where they first differ"
    engine = integer_engine(found.against) is not None
    if "exact" in (found.arith, found.against) and (engine or found.against == "exact"):
        name = found.arith if found.against == "exact" else found.against
        return f"qrun compare {own} {given} --arith {name}   shows where they first differ"
    return "" if engine else f"qrun compare {other} {own} {given}   shows which nodes cost most"


_ENDS = "at the ends"


def _health(found: Evaluation) -> list[Block]:
    made = []
    names = names_of(found)
    for name, model in zip(names, found.models, strict=False):
        if model.health is None:
            continue
        lines = [
            f"{f.rule} {f.level}  {': '.join(part for part in (f.numbered, f.message) if part)}"
            for f in model.health.findings
        ]
        rows = sorted(model.health.tensors, key=lambda t: -t.unused / (t.limits[1] - t.limits[0] + 1))[:_TENSORS]
        left = len(model.health.tensors) - len(rows)
        columns = [
            Column("#", right=True, cell=lambda t: str(t.index)),
            Column("tensor", style=NAME, shrink=1, cell=lambda t: t.name),
            Column("type", optional=3, cell=lambda t: t.type),
            Column("never used", right=True, cell=lambda t: f"{t.unused} of {t.limits[1] - t.limits[0] + 1}"),
            Column(_ENDS, right=True, cell=lambda t: percent((t.at_low + t.at_high) / t.size)),
            Column("values seen", right=True, optional=1, cell=lambda t: _pair(t.range)),
            Column("codes hold", right=True, optional=2, cell=lambda t: _pair(t.holds)),
        ]
        if model.health.accumulators:
            top = model.health.accumulators[0]
            lines.append(f"The largest sum is {top.largest} in {top.name}, {percent(top.share)} of the int32 range.")
        lines = lines or [_silent(rows)]
        more = f"{plural(left, 'more tensor')}   --json" if left > 0 else ""
        made.append(
            Block(
                f"Inside {name}, over all samples",
                Grid.of(columns, rows) if rows else None,
                lines=lines,
                more=more,
                legends={
                    _ENDS: f"{_ENDS}: values with the smallest or largest code, including those that fit it exactly."
                },
            )
        )
    return made


def _silent(rows: Sequence[TensorHealth]) -> str:
    """The text if no rule finds anything, below the tensors with the most unused codes."""
    few = [t.name for t in rows if (t.used[1] - t.used[0]) * 4 < t.limits[1] - t.limits[0]]
    if few:
        return f"No rule is broken, but {join_names(few)} use under a quarter of the codes."
    return "The rules find nothing in the values of any sample."


def _pair(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def _failures(found: Evaluation) -> list[Block]:
    if not found.failures:
        return []
    columns = [
        Column("sample", shrink=1, cell=lambda failure: failure.sample),
        Column("code", cell=lambda failure: failure.code),
        Column("why", wrap=True, below=True, cell=lambda failure: failure.message),
    ]
    shown = found.failures[:10]
    left = found.failed - len({failure.place for failure in shown})
    more = f"{plural(left, 'more sample')}   --json lists them" if left > 0 else ""
    return [Block(f"{plural(found.failed, 'sample')} could not be run", Grid.of(columns, shown), more=more)]


def csv_lines(found: Evaluation) -> Iterator[str]:
    """One line per model: its number of samples, and each score with its limits."""
    import csv

    names = _metrics(found, {})
    rows: list[list[Any]] = [
        ["model", "samples", "failed", *(n + end for n in names.values() for end in ("", "_low", "_high"))]
    ]
    for model in found.models:
        scores = {(score.metric, score.output): score for score in model.scores}
        cells = [(s.value, s.low, s.high) if (s := scores.get(key)) else (None, None, None) for key in names]
        rows.append(
            [
                model.label,
                found.samples,
                model.failed,
                *("" if value is None else repr(value) for cell in cells for value in cell),
            ]
        )
    for row in rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(row)
        yield text.getvalue()


def progress_callback(progress: Progress) -> Callable[[Running], None]:
    """Returns a callback that shows the progress of an evaluation."""

    def show(state: Running) -> None:
        if state.headline is not None:
            found = state.headline
            limits = f"{100 * found.low:.1f} to {100 * found.high:.1f}"
            progress.what = f"{TITLES[state.metric]} {percent(found.value)} ({limits}), {state.per_second:.4g} a second"
        progress(state.done, state.total, state.left)

    return show
