"""One defect planted in the middle of an otherwise clean ResNet-50 gives one finding, at its place."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from planted import CASES, Case, Network
from planted.case import Change, as_it_is
from planted.network import BLOCKS, CLASSES

import qrun
from qrun.checking.check import Settings, check_model
from qrun.checking.rules import RULES, Finding
from qrun.report.codes import CODES

pytest.importorskip("onnxruntime", reason="onnxruntime, whose quantizer writes the network, is not installed")
SETTINGS = Settings(frozenset({*RULES, *CODES}))
OF_CALLS = "QR0"
OF_BUGS = {"QR210"}
"""A kernel that fails without saying why; no model is known that makes one."""

OF_RUNS = {"QR202", "QR209"}
"""Refusals that only the vector meets, which is then not replayed."""


def checked(network: Network, folder: Path) -> list[Finding]:
    """What ``qrun check`` finds in the network and its vector, whose outputs are those of the network."""
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(network.model, path)
    if network.feeds:
        vector = folder / "test_data_set_0"
        vector.mkdir()
        try:
            outputs = qrun.Session(network.model, backend="reference").run(network.feeds)
        except qrun.QrunError:
            outputs = {"logits": np.zeros((1, CLASSES), np.float32)}
        for kind, arrays in (("input", network.feeds), ("output", outputs)):
            for place, array in enumerate(arrays.values()):
                (vector / f"{kind}_{place}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    network.spoil(folder)
    return list(check_model(path, SETTINGS, lambda model, _: qrun.Session(model, backend="reference")).findings)


def places(found: list[Finding]) -> Counter[tuple[str, str]]:
    return Counter((f.rule, f.node) for f in found)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory):
    """What is found in the network of a form, and in others made from it, before anything is planted."""

    @cache
    def found(form: str, base: Change) -> list[Finding]:
        network = Network(form)
        base(network)
        return checked(network, tmp_path_factory.mktemp("before") / "m")

    return found


def test_the_network_is_clean(before) -> None:
    """Nothing in QOperator form; in QDQ form the inputs of 16 blocks,
    read by two convolutions or by one and the sum."""
    assert before("qop", as_it_is) == []
    (note,) = before("qdq", as_it_is)
    assert (note.rule, note.level) == ("QR604", "note")
    nodes = Network("qdq").graph.node
    shared = [n for n in nodes if n.op_type == "DequantizeLinear" and sum(n.output[0] in r.input for r in nodes) > 1]
    assert len(shared) == sum(BLOCKS)
    assert note.node == shared[0].name
    assert note.message.startswith("16 DequantizeLinear with several readers")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_one_defect_one_finding(case: Case, before, tmp_path: Path) -> None:
    network = Network(case.form)
    case.base(network)
    case.plant(network)
    old = before(case.form, case.base)
    new = checked(network, tmp_path / "planted")
    shown = "\n".join(f"{f.rule} {f.node} | {f.tensor} | {f.message}" for f in new)
    added = places(new) - places(old)
    stopped = {("QR505", case.node): 1} if case.code in OF_RUNS else {}
    assert added == {(case.code, case.node): 1, **stopped}, shown
    (finding,) = [f for f in new if (f.rule, f.node) == (case.code, case.node)]
    assert finding.tensor.startswith(case.tensor), shown
    assert finding.message
    assert finding.fix
    if case.code in RULES:
        assert finding.expected
        assert finding.got
        assert finding.level == RULES[case.code].level


def test_every_code_is_planted() -> None:
    codes = {code for code in (*RULES, *CODES) if not code.startswith(OF_CALLS)}
    planted = {c.code for c in CASES}
    missing = sorted(codes - OF_BUGS - planted)
    assert not missing, f"{missing} need a case in tests/planted"
    assert planted == codes - OF_BUGS
