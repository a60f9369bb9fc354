"""Damaged models end with an error of qrun's own, or run: no traceback. ``python tests/mutator.py`` does more."""

from __future__ import annotations

from pathlib import Path

import mutator
import pytest

from qrun.cli import main

ROUNDS, PARTS, SEED = 800, 4, 20


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_models(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = set()
    for number, data in mutator.mutants(ROUNDS, SEED):
        if number % PARTS != part:
            continue
        Path("m.onnx").write_bytes(data)
        code = main(["m.onnx", "--max-memory", "1GiB"])
        message = f"mutant {SEED}/{number}: exit {code}\n{capfd.readouterr().err[-800:]}"
        assert code in (0, 2, 3, 4, 5), message
        assert "Traceback" not in message
        codes.add(code)
    assert {0, 3} <= codes, "the mutants must reach the kernels as well as the parser"


def test_the_mutator_is_deterministic() -> None:
    assert list(mutator.mutants(20, 5)) == list(mutator.mutants(20, 5))
    assert len({data for _, data in mutator.mutants(50, 5)}) > 40
