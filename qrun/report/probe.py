"""The screen and the JSON of ``qrun probe``: the arithmetic as five choices, the families that fit, the accumulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qrun.arithmetics.family import CHOICES
from qrun.probe.dumps import FormReading
from qrun.probe.models import form_branches
from qrun.probe.reading import FamilyFit, Reading
from qrun.report.screen import GOOD, OPEN
from qrun.report.sheet import Block, Sheet
from qrun.report.text import plural

MOST = 3
"""Values of an undecided choice that are listed."""


def probe_sheet(subject: str, found: Sequence[FormReading]) -> Sheet:
    """subject: the runtime with its version, or the dump."""
    named = [each for each in found if each.reading is not None and each.reading.best]
    verdict = f"{subject}: {_verdict(named)}" if named else f"{subject}: no arithmetic of integers explains these codes"
    return Sheet([_block(each) for each in found], verdict, GOOD if named else OPEN, title="qrun probe")


def _verdict(named: Sequence[FormReading]) -> str:
    """``fp32 (onnxruntime, XNNPACK); 0 of 1810 codes differ; next family 18``, for the first form that was read."""
    reading = named[0].reading
    assert reading is not None
    families = reading.families
    first = reading.best[0]
    name = " or ".join(fit.arithmetic.name for fit in families) if families else "an arithmetic of no known family"
    after = f"; next family {reading.next.differing}" if reading.next is not None and families else ""
    return f"{name}; {first.differing} of {first.total} codes differ{after}"


def _block(each: FormReading) -> Block:
    reading = each.reading
    if reading is None:
        return Block(each.form, lines=[each.problem])
    facts = _choices(reading) if reading.best else []
    facts += (
        [("accumulator", ", ".join(f"{w.bits} bits {w.behaviour}" for w in reading.widths))] if reading.widths else []
    )
    facts += [("least code", str(reading.least))] if reading.least is not None else []
    facts += [("pairs of products", reading.pairs)] if reading.pairs else []
    facts += [(f"fits, {fit.differing} differ", _family(fit)) for fit in reading.families[:MOST]]
    if reading.families[MOST:]:
        facts.append(("also", ", ".join(fit.arithmetic.name for fit in reading.families[MOST:])))
    if reading.next is not None:
        facts.append((f"next, {reading.next.differing} differ", _family(reading.next)))
    lines = [each.problem] if each.problem else []
    missing = [branch.name for branch in form_branches(each.form) if branch.name in reading.missing]
    if missing:
        lines.append(f"{plural(len(missing), 'output')} missing: {', '.join(missing[:4])}")
    if not reading.best:
        lines.append(
            "The float32 sums of a group that was not fused look like this: DequantizeLinear, Conv, QuantizeLinear."
        )
    return Block(each.form, facts=facts, lines=lines)


def _choices(reading: Reading) -> list[tuple[str, str]]:
    """A line for each choice: what was read, or what is left."""
    rows = []
    for choice, (label, words) in CHOICES.items():
        values = [words[value] for value in reading.values(choice)]
        more = f", or {len(values) - MOST} more" if len(values) > MOST else ""
        rows.append((label, f"{' or '.join(values[:MOST])}{more}"))
    return rows


def _family(fit: FamilyFit) -> str:
    return f"{fit.arithmetic.name}: {fit.arithmetic.users}"


def probe_fields(subject: str, found: Sequence[FormReading]) -> dict[str, Any]:
    """The body of the JSON document; its schema is qrun/schemas/probe-1.0.json."""
    return {"subject": subject, "forms": [_form_fields(each) for each in found]}


def _form_fields(each: FormReading) -> dict[str, Any]:
    reading = each.reading
    body: dict[str, Any] = {"form": each.form, "problem": each.problem, "read": reading is not None}
    if reading is None:
        return body
    return body | {
        "choices": {choice: list(reading.values(choice)) for choice in CHOICES},
        "families": [_fit_fields(fit) for fit in reading.families],
        "next": _fit_fields(reading.next) if reading.next is not None else None,
        "nearest": _fit_fields(reading.fits[0]) if reading.fits else None,
        "accumulator": {str(width.bits): width.behaviour for width in reading.widths},
        "least_code": reading.least,
        "pairs": reading.pairs,
        "missing": list(reading.missing),
    }


def _fit_fields(fit: FamilyFit) -> dict[str, Any]:
    return {"name": fit.arithmetic.name, "users": fit.arithmetic.users, "differing": fit.differing, "total": fit.total}
