"""Which tests run without --all: every case of most functions, some cases of those that take long, none of the longest.

slow.txt says how many cases of a function those are; ``pytest --all --measure`` writes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

TABLE = Path(__file__).resolve().parents[1] / "slow.txt"
SECONDS = 0.3
"""For the cases of one function, unless a single one takes longer."""
LONGEST = 2.0
"""Functions with a case that takes longer are left out."""


def read_table() -> dict[str, int]:
    """How many cases of a function run, by the function's node id."""
    rows = (line.split(" ", 1) for line in TABLE.read_text("utf-8").splitlines())
    return {function: int(count) for count, function in rows}


def write_table(seconds: Mapping[str, float]) -> None:
    """Write slow.txt; functions that did not run keep their lines. seconds: what each test took, by its node id."""
    grouped = defaultdict(list)
    for test, taken in seconds.items():
        grouped[function_of(test)].append(taken)
    table = {function: count for function, count in read_table().items() if function not in grouped}
    for function, cases in grouped.items():
        *others, longest = sorted(cases)
        mean = sum(others) / len(others) if others else 0.0
        count = 0 if longest > LONGEST else 1 + int(max(SECONDS - longest, 0.0) / mean) if mean else len(cases)
        if count < len(cases):
            table[function] = count
    TABLE.write_text("".join(f"{count} {function}\n" for function, count in sorted(table.items())), "utf-8")


def split_tests(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run, and those that are left out; the cases that run are spread evenly over a function's."""
    table, grouped = read_table(), defaultdict(list)
    for item in items:
        grouped[function_of(item.nodeid)].append(item)
    kept = set()
    for function, cases in grouped.items():
        count = min(table.get(function, len(cases)), len(cases))
        kept.update(cases[place * len(cases) // count] for place in range(count))
    return [item for item in items if item in kept], [item for item in items if item not in kept]


def function_of(test: str) -> str:
    return test.partition("[")[0]
