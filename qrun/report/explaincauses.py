"""The pages of ``qrun explain`` about causes of differences."""

from __future__ import annotations

from collections.abc import Mapping

from qrun.declare.frozen import frozen
from qrun.report.screen import Screen

INHERITED = "inherited"


@frozen
class Told:
    """What a page says of a cause."""

    name: str
    summary: str
    source: str
    confirm: str
    remedy: str

    @property
    def fields(self) -> dict[str, str]:
        """As JSON."""
        return {
            "cause": self.name,
            "summary": self.summary,
            "source": self.source,
            "confirm": self.confirm,
            "fix": self.remedy,
        }


def causes() -> Mapping[str, Told]:
    """Every declared cause by name, and what stands where there is none."""
    from qrun.comparing.causes import CAUSES, UNKNOWN

    known = [Told(c.name, c.summary, c.source, c.confirm, c.remedy) for c in CAUSES.values()]
    known += [
        Told(
            INHERITED,
            "The node gives the same as on the other side when it reads the other side's values: an earlier one is the cause.",
            "qrun compare makes the node anew from the other side's values",
            "qrun compare MODEL -i X --isolate feeds every node the other side's values: the tensor is then equal.",
            "Look at the first node that differs by itself; where there is none, --rtol 0 --atol 0 shows where other bits start.",
        ),
        Told(
            UNKNOWN,
            "No hypothesis about the other side gives its bits.",
            "qrun explain causes lists the hypotheses",
            "qrun compare MODEL -i X --isolate --json has both values and the one before rounding, where they are farthest apart.",
            "Run the node alone with other scales, shapes and inputs until it is equal: what was changed last is the cause.",
        ),
    ]
    return {told.name: told for told in sorted(known, key=lambda told: told.name)}


def print_cause(screen: Screen, told: Told, also: str) -> None:
    """also: code and name of a rule that has the same name, "" if none has."""
    screen.line((told.name, "bold"), "   cause of a difference in qrun compare")
    screen.wrapped("  ", "  ", told.summary)
    rows = [("confirm", told.confirm), ("what to do", told.remedy), ("source", told.source),
            ("see also", f"qrun explain {also}, the rule of the same name" if also else "")]  # fmt: skip
    for label, value in rows:
        if value:
            screen.wrapped(f"  {label:<10}  ", " " * 14, value)
