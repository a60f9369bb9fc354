"""The frozen suite: what it promises, that its script makes it again, and that qrun answers all of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.disagreements import CASES

from qrun.conform.run import conform
from qrun.conform.runtimes import OWN, runtime
from qrun.conform.suite import (
    ARCHIVE,
    DECISION,
    FORCED,
    IMPLIED,
    PROFILES,
    REFUSAL,
    Law,
    Suite,
    pack_case,
    unpack_case,
    write,
)
from qrun.errors import CallError
from qrun.native.emit.isa import choose

ROOT = Path(__file__).resolve().parents[2]
SHA256 = "490624d78095216fc8b2b3ceb81f42f46653b21e54b71e379cff069e694bd40e"


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite()


def test_suite_is_frozen() -> None:
    """A case that is wrong is mended in a later suite, with a version of its own."""
    assert hashlib.sha256(ARCHIVE.read_bytes()).hexdigest() == SHA256
    assert ARCHIVE.stat().st_size < 3_000_000


def test_the_script_makes_the_same_suite() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_conformance.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_suite_has(suite: Suite) -> None:
    ids = [info.id for info in suite.cases]
    assert len(ids) >= 2000
    assert ids == sorted(set(ids))
    assert len({(info.domain, info.op) for info in suite.cases}) >= 30
    profiles = Counter(info.profile for info in suite.cases)
    assert set(profiles) <= set(PROFILES)
    assert min(profiles.values()) > 100
    assert {info.basis for info in suite.cases} == {FORCED, IMPLIED, DECISION}
    assert sum(info.expects == REFUSAL for info in suite.cases) > 40


def test_known_disagreements_are_cases(suite: Suite) -> None:
    ids = {info.id for info in suite.cases}
    missing = [c.id for c in CASES if f"known/{c.op.lower()}-{c.id.lower()}" not in ids]
    assert missing == ["S1"]


def test_exact_values_are_what_is_rounded(suite: Suite) -> None:
    """RNE(exact) + zero point, saturated, is expected; on every tie the margin is 0."""
    seen = ties = 0
    for info in suite.select(["QLinearConv", "QLinearMatMul"]):
        case = suite.load(info)
        if info.expects == REFUSAL or info.domain or "y0" not in case.exact:
            continue
        exact, margin, want = case.exact["y0"], case.margin["y0"], case.expected["y0"].astype(np.float64)
        if not exact.size or not np.isfinite(exact).all() or np.abs(exact).max() > 1e6:
            continue
        steps = want - np.rint(exact)
        inside = np.abs(exact) < 50
        if inside.any() and want[inside].min() > 0 and want[inside].max() < 127:
            assert np.all(steps[inside] == steps[inside][0]), info.id
            seen += 1
        ties += int(np.count_nonzero(margin == 0))
    assert seen > 50
    assert ties > 200


def test_cases_are_read_without_onnx() -> None:
    code = "import sys; from qrun.conform.suite import Suite; s = Suite(); s.load(s.cases[7]); print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_case_is_packed_and_unpacked(suite: Suite, tmp_path: Path) -> None:
    infos = suite.select(
        ["known/quantizelinear-o7", "known/dequantizelinear-r9", "dynamicquantizelinear-11/range/all-zeros"]
    )
    cases = [suite.load(info) for info in infos]
    assert len(cases) == 3
    for case in cases:
        again = unpack_case(case.info, pack_case(case))
        assert pack_case(again) == pack_case(case)
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for path in paths:
        write(path, cases, {info.rule: Law(FORCED, "G1", "title", ()) for info in infos}, {})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [info.id for info in Suite(paths[0]).cases] == [info.id for info in infos]


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (["QLinearConv"], lambda i: i.op == "QLinearConv"),
        (["com.microsoft::QLinearConv"], lambda i: i.op == "QLinearConv" and i.domain),
        (["edge"], lambda i: i.profile == "edge"),
        (
            ["QLinearConv,QLinearMatMul", "edge"],
            lambda i: i.op in ("QLinearConv", "QLinearMatMul") and i.profile == "edge",
        ),
        (["qlinearconv-10/ties"], lambda i: i.id.startswith("qlinearconv-10/ties/")),
        (["known/qgemm"], lambda i: i.id.startswith("known/qgemm-")),
        (["known/qgemm-o3", "known/qgemm-o2"], lambda i: i.id in ("known/qgemm-o3", "known/qgemm-o25")),
    ],
)
def test_words_select(suite: Suite, words, fits) -> None:
    assert suite.select(words) == [info for info in suite.cases if fits(info)]
    assert suite.select(words)


def test_a_word_that_fits_nothing_is_told(suite: Suite) -> None:
    with pytest.raises(CallError) as caught:
        suite.select(["QLinearConf"])
    assert "--select QLinearConv" in caught.value.fixes


def test_a_damaged_suite_is_told(tmp_path: Path) -> None:
    path = tmp_path / "suite.zip"
    path.write_bytes(ARCHIVE.read_bytes()[:5000])
    with pytest.raises(CallError, match="cannot read the suite"):
        Suite(path)


@pytest.mark.parametrize("name", OWN)
def test_qrun_is_exact(suite: Suite, name: str) -> None:
    found = conform(suite, suite.cases, runtime(name), jobs=2)
    assert [(c.id, c.verdict, c.text) for c in found.cases if c.verdict != "exact"] == []
    assert len(found.cases) == len(suite.cases)
    assert choose()
