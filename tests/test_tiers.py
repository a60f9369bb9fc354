"""The default tier: what slow.txt names exists, and its cases are spread over all of a function's."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import tiers

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Item:
    nodeid: str


def items(**cases: int) -> Any:
    return [Item(f"f.py::{name}[{at}]") for name, count in cases.items() for at in range(count)]


def test_every_function_of_the_table_exists() -> None:
    functions: dict[str, set[str]] = {}
    for name in tiers.read_table():
        path, _, function = name.partition("::")
        if path not in functions:
            tree = ast.parse((ROOT / path).read_text("utf-8"))
            functions[path] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function.split("::")[-1] in functions[path], f"{name} is not there any more: delete its line"


def test_cases_are_spread_and_the_longest_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tiers, "TABLE", tmp_path / "slow.txt")
    tiers.TABLE.write_text("1 f.py::some\n2 f.py::before\n", "utf-8")
    seconds = {item.nodeid: 0.1 for item in items(some=10)} | {"f.py::long": 3.0, "f.py::short": 0.01}
    tiers.write_table(seconds)
    assert tiers.read_table() == {"f.py::some": 3, "f.py::long": 0, "f.py::before": 2}
    kept, left = tiers.split_tests([*items(some=10, other=2), Item("f.py::long")])  # type: ignore[list-item]
    assert [item.nodeid.partition("::")[2] for item in kept] == [
        "some[0]",
        "some[3]",
        "some[6]",
        "other[0]",
        "other[1]",
    ]
    assert len(left) == 8
