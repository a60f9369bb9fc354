"""Names for several arithmetics at once: the choices that they share, and who computes so.

The codes of an ordinary model seldom single out one family, but they do show what all arithmetics that fit have in
common. So that a family's name never stands for an arithmetic that nobody has described, the variants of all families
are tried too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from qrun.arithmetics.families import FAMILIES
from qrun.arithmetics.family import TIES, Arithmetic
from qrun.declare.frozen import replace

_ROUNDING = {"high half": "two roundings", "16 bits": "sum rounded to 16 bits first"}
_CUT = {"floor": "rounds down", "cut": "drops the fraction"}
_FINE = 16
"""Multipliers of this many bits or more are alike: ordinary data seldom tells them apart."""
_WIDTHS = (22, 20, 18, 16, 12)
"""Bits of multipliers that no family has."""
MOST = 5
"""The most users that a name lists."""


@cache
def variants() -> tuple[Arithmetic, ...]:
    """The families with every rounding of ties, with the zero point before and after rounding, and with multipliers of
    other widths, but for the families themselves."""
    wide = [replace(FAMILIES["tfl-single"], hold=f"{bits} bits") for bits in _WIDTHS]
    found: dict[tuple[str | int | None, ...], Arithmetic] = {}
    for row in (*FAMILIES.values(), *wide):
        places = ("after", "before") if row.hold.startswith("float") else ("after",)
        rules = (row.ties,) if row.steps == "16 bits" else TIES
        for ties in rules:
            for zero in places:
                choices = (row.derive, row.hold, row.steps, ties, zero, row.low)
                name = ", ".join(map(str, choices))
                found[choices] = replace(row, name=name, ties=ties, zero=zero, users="", source="")
    for row in FAMILIES.values():
        found.pop((row.derive, row.hold, row.steps, row.ties, row.zero, row.low), None)
    return tuple(found.values())


def rounding(row: Arithmetic) -> str:
    """How often an arithmetic rounds, or that it does not, in words."""
    return _CUT.get(row.ties) or _ROUNDING.get(row.steps, "one rounding")


def bits(row: Arithmetic) -> int:
    """The bits of the multiplier."""
    return {"float32": 24, "float64": 53, "power of two": 1}.get(row.hold) or int(row.hold.split()[0])


def are_alike(rows: Collection[Arithmetic]) -> bool:
    """Do the arithmetics form one group that can be named: do they share how often they round and, besides, the
    precision of the multiplier or the rounding of ties?"""
    widths = {bits(row) for row in rows}
    precise = len(widths) == 1 or min(widths) >= _FINE or (max(widths) <= _FINE and 1 not in widths)
    return _shared(rows, rounding) and (precise or _shared(rows, _ties))


def describe_group(rows: Sequence[Arithmetic]) -> str:
    """The choices that the arithmetics share, such as ``two roundings, ties away from zero, 31-bit multiplier``.

    rows: at least one. Choices in which they differ are left out; "" if they share none.
    """
    first, parts = rows[0], []
    if _shared(rows, rounding):
        parts.append(rounding(first))
    if _shared(rows, _ties) and first.ties not in _CUT:
        parts.append(f"ties {TIES[first.ties]}")
    least, most = min(map(bits, rows)), max(map(bits, rows))
    if _shared(rows, lambda row: row.hold):
        parts.append(f"{first.hold.replace(' bits', '-bit').replace('power of two', 'power-of-two')} multiplier")
    elif least > 1:
        parts.append(f"multiplier of {f'{least} to {most} bits' if most <= _FINE else f'{least} bits or more'}")
    if all(row.zero == "before" for row in rows):
        parts.append("zero point added before rounding")
    if first.low is not None and _shared(rows, lambda row: row.low):
        parts.append(f"never below {first.low}")
    return ", ".join(parts)


def name_users(rows: Sequence[Arithmetic]) -> str:
    """Who computes so: a few users, qrun itself only if nobody else does, and how many more there are; "" if nobody is
    known to."""
    users = list(dict.fromkeys(user for row in rows for user in row.users.split(", ") if user))
    users = [user for user in users if user != "qrun"] or users
    more = f" and {len(users) - MOST} more" if len(users) > MOST else ""
    return f"{', '.join(users[:MOST])}{more}"


def _ties(row: Arithmetic) -> str:
    return row.ties


def _shared(rows: Collection[Arithmetic], trait: Callable[[Arithmetic], object]) -> bool:
    """Do all have the same value of a trait?"""
    return len({trait(row) for row in rows}) == 1
