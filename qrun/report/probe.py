"""The screen and the JSON of ``qrun probe``: the arithmetic as five choices, the families that fit, the accumulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qrun.arithmetics.family import CHOICES, HOLD
from qrun.documents.record import encode
from qrun.errors import some
from qrun.probe.combinations import UNLIKE, FamilyFit
from qrun.probe.dumps import FormReading
from qrun.probe.reading import FLOATS, INTEGERS, Reading
from qrun.report.screen import GOOD, OPEN
from qrun.report.sheet import Block, Sheet
from qrun.report.text import plural

MOST = 3
"""Values of an undecided choice that are listed."""
NOTHING = "no arithmetic that qrun knows explains these codes"
BIAS = {
    INTEGERS: "added to the sum of integers",
    FLOATS: "not part of the sum of integers: probably added as a float after scaling",
}
_VERBS = {"saturates": "saturate", "wraps": "wrap"}
PADDING = {"zero point": "the input's zero point"}
RELU = {"zero point": "clips at the output's zero point", "code 0": "clips at the code 0", "nowhere": "clips nowhere"}


def probe_sheet(subject: str, found: Sequence[FormReading]) -> Sheet:
    """subject: the runtime with its version, or the dump."""
    named = [each.reading for each in found if each.reading is not None and each.reading.named]
    said = _verdict(next((each for each in named if each.best), named[0])) if named else _unnamed(found)
    return Sheet([_block(each) for each in found], f"{subject}: {said}", GOOD if named else OPEN, title="qrun probe")


def _verdict(reading: Reading) -> str:
    """``fp32; 0 of 1810 codes differ; next family 18``, and the defects that were seen."""
    if reading.floats:
        said = f"sums in float32, not in integers; {reading.floats.differing} of {reading.floats.total} codes differ"
        return "; ".join([said, *_defects(reading)])
    families = reading.families
    first = (families or reading.best)[0]
    name = " or ".join(fit.arithmetic.name for fit in families) if families else "an arithmetic of no known family"
    after = [f"next family {reading.next.differing}"] if reading.next is not None and families else []
    return "; ".join([name, f"{first.differing} of {first.total} codes differ", *after, *_defects(reading)])


def _defects(reading: Reading) -> list[str]:
    """What a device does wrong, whatever its arithmetic."""
    narrow = reading.narrow
    found = [f"sums beyond {narrow.bits} bits {_VERBS[narrow.behaviour]}"] if narrow is not None else []
    found += ["pairs of products saturate"] if reading.pairs == "saturates" else []
    found += [f"wrong padding: {reading.padding}"] if reading.padding.startswith("code") else []
    return found + ([f"wrong Relu: {RELU[reading.relu]}"] if reading.relu in ("code 0", "nowhere") else [])


def _unnamed(found: Sequence[FormReading]) -> str:
    """The first line if nothing is named: why a single form was not read, or that nothing explains its codes."""
    if len(found) == 1 and found[0].reading is None:
        return found[0].problem
    if not any(each.reading is not None and each.reading.fits for each in found):
        return "these outputs do not show the arithmetic"
    return NOTHING


def _block(each: FormReading) -> Block:
    reading = each.reading
    if reading is None:
        return Block(each.form, lines=[each.problem])
    facts = [*(_choices(reading) if reading.best else []), *_answers(reading)]
    facts += [(f"fits, {fit.differing} differ", _family(fit)) for fit in reading.families[:MOST]]
    if reading.families[MOST:]:
        facts.append(("also", ", ".join(fit.arithmetic.name for fit in reading.families[MOST:])))
    if reading.next is not None and not reading.floats:
        label = "next" if reading.named else "nearest"
        facts.append((f"{label}, {reading.next.differing} differ", _family(reading.next)))
    lines = [each.problem] if each.problem else []
    if reading.missing:
        lines.append(f"{plural(len(reading.missing), 'output')} missing: {some(reading.missing)}")
    if not reading.named:
        lines.append(_advice(reading))
    return Block(each.form, facts=facts, lines=lines)


def _advice(reading: Reading) -> str:
    """What to do if nothing is named."""
    if not reading.fits:
        return "Save the outputs ladder_..., shift_..., tie_..., gain_... and single_... too: they show it."
    if reading.fits[0].share > UNLIKE:
        said = "Too far off for another rounding: say which form it was with --form"
        return f"{said}, or run the form shifts if the toolchain rounds scales to powers of two."
    said = "Most codes agree with the nearest, so the scales seem right, but the multiplier or its rounding is none"
    return f"{said} of qrun explain arithmetics: compare models with --lsb 1."


def _answers(reading: Reading) -> list[tuple[str, str]]:
    """A line for each answer apart from the five choices."""
    shown = [width for width in reading.widths if reading.narrow is None or width.bits <= reading.narrow.bits]
    widths = ", ".join(f"{width.bits} bits {width.behaviour}" for width in shown)
    rows = [
        ("sums", f"floats: {reading.floats.describe()}" if reading.floats else reading.sums),
        ("bias", BIAS.get(reading.bias, "")),
        ("accumulator", widths),
        ("least code", "" if reading.least is None else str(reading.least)),
        ("pairs of products", reading.pairs),
        ("padding", PADDING.get(reading.padding, reading.padding)),
        ("Relu", RELU.get(reading.relu, reading.relu)),
    ]
    return [(label, text) for label, text in rows if text]


def _choices(reading: Reading) -> list[tuple[str, str]]:
    """A line for each choice: what was read, or what is left."""
    rows = []
    for choice, (label, words) in CHOICES.items():
        values = _merged([words[value] for value in reading.values(choice)])
        more = f", or {len(values) - MOST} more" if len(values) > MOST else ""
        rows.append((label, f"{' or '.join(values[:MOST])}{more}"))
    return rows


def _merged(values: list[str]) -> list[str]:
    """Texts, with integers of neighbouring numbers of bits as one."""
    bits = [bits for bits in range(4, 32) if HOLD[f"{bits} bits"] in values]
    if len(bits) < 2 or bits[-1] - bits[0] >= len(bits):
        return values
    several = f"as an integer of {bits[0]} to {bits[-1]} bits and a shift"
    return list(dict.fromkeys(several if " bits " in value else value for value in values))


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
        "sums": reading.sums,
        "floats": encode(reading.floats) if reading.floats else None,
        "bias": reading.bias,
        "accumulator": {str(width.bits): width.behaviour for width in reading.widths},
        "least_code": reading.least,
        "pairs": reading.pairs,
        "padding": reading.padding,
        "relu": reading.relu,
        "missing": list(reading.missing),
    }


def _fit_fields(fit: FamilyFit) -> dict[str, Any]:
    return {"name": fit.arithmetic.name, "users": fit.arithmetic.users, "differing": fit.differing, "total": fit.total}
