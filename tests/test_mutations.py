"""Damaged and unusual models end with an error of qrun's own, or are answered: no traceback, no crash, by any command.

``cd tests; python -m helpers.mutator`` does more, and watches time and memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import mutator, mutator_models

from qrun.cli import main

ROUNDS, PARTS, SEED = 800, 4, 20
LONG = 10**4
"""Characters of a long name here, and how often a name comes."""


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_models(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mutator_models, "LONG", LONG)
    codes = set()
    for number, data in mutator.mutants(ROUNDS, SEED):
        if number % PARTS != part:
            continue
        Path("m.onnx").write_bytes(data)
        words = mutator.command(number // PARTS, Path("m.onnx"))
        code = main(words)
        message = f"mutant {SEED}/{number}: {' '.join(words)}: exit {code}\n{capfd.readouterr().err[-800:]}"
        assert code in mutator.answers(words), message
        assert "Traceback" not in message
        codes.add(code)
    assert {0, 3} <= codes, "the mutants must reach the kernels as well as the parser"


def test_the_mutator_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutator_models, "LONG", LONG)
    assert list(mutator.mutants(20, 5)) == list(mutator.mutants(20, 5))
    assert len({data for _, data in mutator.mutants(50, 5)}) > 40
