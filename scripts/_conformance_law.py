"""The law of the suite: for each operator version and section of numerics.md, what is due, on what basis, and the
sentences of the specification, word by word. tests/conform/test_law.py finds each of them in the installed texts.

How to write a rule:

- forced: the quoted sentences alone give every bit of the answer.
- implied: the operator's formula or function body gives it, together with the quotes; no reading of it gives another.
- decision: the text is silent or open; the quotes are those nearest to the question, the note says why qrun chose so.
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.conform.suite import DECISION, FORCED, IMPLIED, Law, Quote

LAW: dict[str, Law] = {}
"""The rules by key: operator, version and section, such as ``QLinearConv-10 G1``."""
STRENGTH = {FORCED: 2, IMPLIED: 1, DECISION: 0}


def law(
    operator: str, versions: Sequence[int], section: str, basis: str, title: str, *quotes: str | Quote, note: str = ""
) -> None:
    """Declare a rule for some versions of an operator; a quote that is only text is from the operator's own page.

    operator: its name, with ``com.microsoft.`` before it for that domain, or ``graph``. section: of numerics.md,
    with a word after a slash where one section has several rules, such as ``G3/bias``.
    """
    assert basis in STRENGTH, basis
    assert quotes, (operator, section)
    for version in versions:
        source = f"{operator}-{version}"
        key = f"{source} {section}"
        assert key not in LAW, key
        found = tuple(quote if isinstance(quote, Quote) else Quote(source, quote) for quote in quotes)
        LAW[key] = Law(basis, section.partition("/")[0], title, found, note)
