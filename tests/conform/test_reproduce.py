"""``qrun conform --reproduce``: a script without qrun gives the answer that qrun judged."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call, says

from qrun.conform.reproduce import script
from qrun.conform.results import CaseResult
from qrun.conform.run import conform
from qrun.conform.runtimes import RUNTIMES, runtime
from qrun.conform.suite import Suite

SUITE = Suite()
CASES = {
    "ort": (
        "known/qlinearadd-o15",
        "known/qlinearadd-o16",
        "known/qlinearaveragepool-o17",
        "known/convinteger-o29",
        "known/qgemm-o25",
        "known/qlinearmul-o18",
        "known/qlinearsoftmax-o13",
        "known/quantizelinear-o9",
        "cast-19/float8/float16-to-float8e4m3fn-no-saturation",
        "dequantizelinear-19/lenient/int32-zero-point-greatest",
        "ms.qlinearleakyrelu-1/slopes/u-alpha-0.1-ties",
        "ms.matmulintegertofloat-1/forms/ss",
    ),
    "onnx-ref": (
        "known/matmulinteger-r6",
        "known/qlinearconv-r2",
        "known/qlinearconv-r3",
        "known/qlinearmatmul-r1",
        "known/quantizelinear-r17",
        "qlinearmatmul-21/scale-types/bfloat16-sss",
    ),
}
"""Cases that the runtimes answer in another way, or refuse."""
EXACT = "quantizelinear-19/narrow/float8e5m2", "dequantizelinear-21/narrow/uint4-float32", "graph.conv-13/qdq"
"""Cases that onnxruntime answers as expected: types that numpy lacks, in and out, and a graph of several nodes."""


@cache
def judged(name: str) -> dict[str, CaseResult]:
    cases = SUITE.select(CASES[name])
    return {result.id: result for result in conform(SUITE, cases, runtime(name)).cases}


def printed(id: str, name: str) -> tuple[int, str]:
    """The exit code of a case's script in a process of its own, and what it printed."""
    info = SUITE.select([id])[0]
    text = script(SUITE.load(info), SUITE.rule(info), runtime(name), SUITE.version)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "id"), [(name, id) for name, ids in CASES.items() for id in ids])
def test_the_script_gives_the_answer_that_was_judged(name: str, id: str) -> None:
    pytest.importorskip("onnxruntime")
    result, (code, text) = judged(name)[id], printed(id, name)
    if result.verdict == "refused":
        assert code == 1
        assert result.text.partition(": ")[2][:40] in text
        return
    assert code == 0, text
    if not result.elements:
        assert "got uint8 (1, 2, 2, 1), expected uint8 (1, 2, 1)\n" in text
        assert "elements differ" not in text
        return
    assert f"{result.differing} of {result.total} elements differ" in text
    shape = next(iter(SUITE.load(SUITE.select([id])[0]).expected.values())).shape
    lines = re.findall(r"flat index (\d+): got (\S+), expected (\S+)", text)
    shown = [(int(at), float(got), float(want)) for at, got, want in lines]
    wanted = [(int(np.ravel_multi_index(e.index, shape)), e.got, e.expected) for e in result.elements]
    assert wanted
    assert repr(shown[: len(wanted)]) == repr(wanted)  # NaN is NaN


@pytest.mark.parametrize("id", EXACT)
def test_types_that_numpy_lacks_and_graphs(id: str) -> None:
    pytest.importorskip("onnxruntime")
    code, text = printed(id, "ort")
    assert code == 0, text
    assert re.search(r"\b0 of [1-9]\d* elements differ", text)


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without domains that are stated to be empty."""
    for node in model.graph.node:
        if not node.domain:
            node.ClearField("domain")
    return model


def test_the_script_has_the_models_and_values_of_the_cases() -> None:
    """As calls of onnx.helper."""
    for info in SUITE.cases[::7]:
        case = SUITE.load(info)
        text = script(case, SUITE.rule(info), runtime("onnx-ref"), SUITE.version)
        assert "ModelProto.FromString" not in text, info.id
        names: dict = {}
        exec(text.partition("\ngot = ")[0], names)
        assert plain(names["model"]) == plain(onnx.load_model_from_string(case.model)), info.id
        for made, given in ((names["inputs"], case.inputs), (names["expected"], case.expected)):
            assert list(made) == list(given)
            for name, array in given.items():
                assert (made[name].dtype, made[name].shape) == (array.dtype, array.shape), info.id
                assert made[name].tobytes() == array.tobytes(), info.id
        assert max(map(len, text.splitlines())) <= 120, info.id


def test_a_model_that_calls_cannot_say_is_written_as_its_bytes() -> None:
    from dataclasses import replace

    info = SUITE.cases[0]
    case = SUITE.load(info)
    model = onnx.load_model_from_string(case.model)
    model.graph.doc_string = "told"
    text = script(replace(case, model=model.SerializeToString()), SUITE.rule(info), runtime("ort"), "1")
    names: dict = {}
    exec(text.partition("\noptions = ")[0], names)
    assert names["model"] == model


@pytest.mark.parametrize("name", RUNTIMES)
def test_each_runtime_has_a_script(name: str) -> None:
    info = SUITE.cases[0]
    compile(script(SUITE.load(info), SUITE.rule(info), runtime(name), SUITE.version), name, "exec")


@pytest.mark.parametrize(
    ("name", "text"),
    [("onnx-ref", "got an answer to an invalid model, expected an error\n"), ("reference", "refused, as expected: QR")],
)
def test_an_invalid_model(name: str, text: str) -> None:
    code, told = printed("known/qlinearmatmul-r13", name)
    assert code == 0, told
    assert text in told


def test_comments_end_with_one_full_stop() -> None:
    for info in SUITE.cases[::50]:
        assert ".." not in script(SUITE.load(info), SUITE.rule(info), runtime("ort"), "1").partition("\nimport")[
            0
        ].replace("...", "")


def test_the_command_prints_or_writes_the_script(tmp_path: Path) -> None:
    words = ("conform", "--reproduce", "known/qlinearmul-o18", "--runtime", "ort")
    done = call(*words)
    assert done.code == 0, done.err
    rule = SUITE.rule(SUITE.select(["known/qlinearmul-o18"])[0])
    assert "# Case known/qlinearmul-o18 of the qrun conformance suite" in done.out
    assert rule.title in done.out
    assert all(quote.text[:30] in done.out for quote in rule.quotes)
    assert call(*words, "-o", str(tmp_path / "report.py")).out == ""
    assert (tmp_path / "report.py").read_text(encoding="utf-8") == done.out


def test_what_is_wrong_with_a_call() -> None:
    says(call("conform", "--reproduce", "known/qlinearmul-o18"), 2, "takes one runtime, not 0")
    says(call("conform", "--reproduce", "known", "--runtime", "ort"), 2, "takes one case, not")
    program = "cmd:mine {model} {inputs} {outputs}"
    says(call("conform", "--reproduce", "known/qlinearmul-o18", "--runtime", program), 2, "qrun conform export DIR")
