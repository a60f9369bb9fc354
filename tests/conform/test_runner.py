"""Runtimes that misbehave cost the cases on which they do; programs as runtimes; other Pythons."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qrun.conform.results import RuntimeResult, changed, select_changed
from qrun.conform.run import conform
from qrun.conform.runtimes import Runtime, runtime
from qrun.conform.suite import Suite
from qrun.errors import CallError, UnsupportedError

HERE = Path(__file__).parent
PROGRAM = """import sys
from pathlib import Path
import numpy as np
import onnx
from onnx import numpy_helper
model, inputs, outputs = map(Path, sys.argv[1:])
proto = onnx.load(model)
node = proto.graph.node[0]
{before}
feeds = {{v.name: numpy_helper.to_array(onnx.TensorProto.FromString((inputs / f"input_{{at}}.pb").read_bytes()))
         for at, v in enumerate(proto.graph.input)}}
feeds |= {{t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}}
a, b, az, bz = (feeds[name].astype(np.int64) if name else 0 for name in [*node.input, "", ""][:4])
y = np.matmul(a - az, b - bz).astype(np.int32)
(outputs / "output_0.pb").write_bytes(numpy_helper.from_array(np.asarray(y), "y0").SerializeToString())
"""


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite()


def planted(
    suite: Suite, option: str, monkeypatch: pytest.MonkeyPatch, count: int = 120, jobs: int = 1
) -> RuntimeResult:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    chosen = Runtime("planted", "planted", "planted_runtime", option)
    return conform(
        suite,
        suite.select(["qlinearconv-10/geometry", "qlinearconv-10/ties", "qlinearconv-10/types"])[:count],
        chosen,
        jobs=jobs,
        limit=3.0,
    )


@pytest.mark.parametrize(
    ("option", "verdict"),
    [
        ("crashes", "crashed"),
        ("exits", "refused"),
        ("hangs", "hung"),
        ("gives rubbish", "crashed"),
        ("speaks rubbish", "crashed"),
    ],
)
def test_what_misbehaves_costs_one_case(
    suite: Suite, option: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process misbehaves on its 50th case, and another one goes on."""
    found = planted(suite, option, monkeypatch)
    assert found.counts[verdict] == 2, found.counts
    assert found.counts["exact"] == len(found.cases) - 2 == 118
    assert [at for at, case in enumerate(found.cases) if case.verdict == verdict] in ([49, 99], [49, 98])


def test_other_bits_in_each_run_are_unstable(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(suite, "changes", monkeypatch, count=20)
    assert {(case.verdict, case.cause) for case in found.cases} == {("unstable", "garbage")}


EMPTY_SUMS = "matmulinteger-10/edge/no-inner,qlinearmatmul-10/edge/no-inner,convinteger-10/edge/no-channels,known/qgemm"


def test_an_unchanged_runtime_equals_its_baseline(suite: Suite) -> None:
    """onnxruntime reads memory that it has not written where a sum has no terms."""
    cases = suite.select([EMPTY_SUMS])
    found = [conform(suite, cases, runtime("ort")) for _ in range(3)]
    assert found[0].counts["unstable"] > 10
    for each in found[1:]:
        assert select_changed(each, found[0], "").cases == ()


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        ("unstable", "wrong", False),
        ("wrong", "unstable", False),
        ("unstable", "unstable", False),
        ("unstable", "exact", True),
        ("exact", "unstable", True),
        ("crashed", "unstable", True),
        ("exact", "wrong", True),
    ],
)
def test_unstable_and_wrong_are_the_same_to_a_baseline(before: str, now: str, changes: bool, suite: Suite) -> None:
    (case,) = conform(suite, suite.cases[:1], runtime("reference")).cases
    old, new = (replace(case, verdict=verdict, cause=verdict) for verdict in (before, now))
    assert changed(new, old) is changes


def test_several_at_once_give_the_same(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = (planted(suite, "", monkeypatch, jobs=jobs) for jobs in (1, 3))
    assert alone.cases == together.cases
    assert alone.counts["exact"] == 120


def test_a_runtime_that_is_not_there_is_told() -> None:
    with pytest.raises(UnsupportedError, match="cannot be used") as caught:
        conform(Suite(), Suite().cases[:1], Runtime("no", "no", "no_such_adapter"))
    assert "ModuleNotFoundError" in dict(caught.value.facts)["got"]
    with pytest.raises(UnsupportedError, match="cannot be used"):
        conform(Suite(), Suite().cases[:1], runtime("ort"), python="/no/python")
    with pytest.raises(CallError, match="unknown runtime"):
        runtime("orf")


def program(tmp_path: Path, before: str = "") -> Runtime:
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM.format(before=before))
    return runtime(f"cmd:{shlex.quote(sys.executable)} {path} {{model}} {{inputs}} {{outputs}}")


def test_a_program_is_a_runtime(suite: Suite, tmp_path: Path) -> None:
    """It knows zero points of the whole tensor only."""
    found = conform(suite, suite.select(["matmulinteger-10/types"])[:6], program(tmp_path), jobs=2)
    assert found.counts["exact"] == 6
    rows = conform(suite, suite.select(["matmulinteger-10/parameters/per-row-square-uu"]), program(tmp_path))
    assert [(case.verdict, case.cause, case.proved) for case in rows.cases] == [("wrong", "wrong-scale-axis", True)]


@pytest.mark.parametrize(
    ("before", "verdict", "text"),
    [
        (
            "sys.exit('no such form') if False else (print('no such form', file=sys.stderr), sys.exit(2))",
            "refused",
            "no such form",
        ),
        ("sys.exit(3)", "unsupported", ""),
        ("sys.exit(7)", "crashed", "exit code 7"),
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("import time; time.sleep(60)", "hung", "no answer in 2 s"),
        ("(outputs / 'output_0.pb').write_bytes(b'rubbish'); sys.exit(0)", "crashed", "is not a tensor"),
        ("sys.exit(0)", "wrong", "no output; expected"),
        ("(outputs / 'output_0.pb').symlink_to('/dev/zero'); sys.exit(0)", "crashed", "not a regular file"),
        ("import os; os.mkfifo(outputs / 'output_0.pb'); sys.exit(0)", "crashed", "not a regular file"),
        ("open(outputs / 'output_0.pb', 'wb').truncate(2**40); sys.exit(0)", "crashed", "more memory"),
        ("import os; os.close(2); import time; time.sleep(60)", "hung", "no answer in 2 s"),
        ("sys.stderr.write('no\\n' * 2**24 + 'because\\n'); sys.exit(2)", "refused", "because"),
    ],
)
def test_how_a_program_ends_is_the_verdict(suite: Suite, tmp_path: Path, before: str, verdict: str, text: str) -> None:
    cases = suite.select(["matmulinteger-10/types/matrix-uu"])
    (case,) = conform(suite, cases, program(tmp_path, before), limit=2.0 if "sleep" in before else 20.0).cases
    assert case.verdict == verdict
    assert text in case.text


def test_a_runtime_takes_nothing_from_the_current_folder(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("open('imported', 'w')\nraise ImportError('not numpy')\n")
    monkeypatch.chdir(tmp_path)
    found = conform(suite, suite.select(["matmulinteger-10/types/matrix-uu"]), runtime("onnx-ref"))
    assert found.counts["exact"] == 1
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "text", ["cmd:", "cmd:mine", "cmd:mine {model} {inputs}", "cmd:'mine {model} {inputs} {outputs}"]
)
def test_a_command_that_names_no_places_is_refused(text: str) -> None:
    with pytest.raises(CallError, match="this command cannot run cases"):
        conform(Suite(), Suite().cases[:1], runtime(text))


def test_a_command_that_does_not_exist_is_told() -> None:
    with pytest.raises(CallError, match="this command cannot run cases"):
        conform(Suite(), Suite().cases[:3], runtime("cmd:./no-such-program {model} {inputs} {outputs}"), jobs=2)


def test_another_python_has_its_own_packages(suite: Suite) -> None:
    found = conform(suite, suite.select(["qlinearmatmul-10/types"]), runtime("onnx-ref"), python=sys.executable)
    assert found.version
    assert found.counts["exact"] + found.counts["choice"] == len(found.cases)
