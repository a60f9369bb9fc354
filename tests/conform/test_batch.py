"""Programs that run many cases in one process."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qrun.conform.results import RuntimeResult
from qrun.conform.run import Progress, conform
from qrun.conform.runtimes import runtime
from qrun.conform.suite import Suite
from qrun.errors import CallError

PYTHON = """import json, os, sys, time
from pathlib import Path
import numpy as np
import onnx
from onnx import numpy_helper
def run(case):
    proto = onnx.load(case["model"])
    node = proto.graph.node[0]
    feeds = {{v.name: numpy_helper.to_array(onnx.TensorProto.FromString(Path(case["inputs"], f"input_{{at}}.pb").read_bytes()))
             for at, v in enumerate(proto.graph.input)}}
    feeds |= {{t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}}
    a, b, az, bz = (feeds[name].astype(np.int64) if name else 0 for name in [*node.input, "", ""][:4])
    y = np.matmul(a - az, b - bz).astype(np.int32)
    Path(case["outputs"], "output_0.pb").write_bytes(numpy_helper.from_array(np.asarray(y), "y0").SerializeToString())
for number, line in enumerate(sys.stdin, 1):
    case = json.loads(line)
    {before}
    run(case)
    print({answer}, flush=True)
    {after}
"""
C = r"""
#include <stdio.h>
#include <string.h>
static char line[1 << 16], path[1 << 16];
int main(void) {
    while (fgets(line, sizeof line, stdin)) {
        char *at = strstr(line, "\"outputs\": \"") + 12;
        *strchr(at, '"') = 0;
        snprintf(path, sizeof path, "%s/output_0.pb", at);
        FILE *file = fopen(path, "wb");
        fwrite("\x10\x06\x4a\x04\x07\x00\x00\x00", 1, 8, file);  /* an int32 scalar: 7 */
        fclose(file);
        puts(strstr(line, "/edge/") ? "{\"refused\": \"no edges\"}" : "{\"ok\": true}");
        fflush(stdout);
    }
}
"""
CASES = 12


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite()


def batch(
    suite: Suite,
    folder: Path,
    before: str = "pass",
    answer: str = "'{}'",
    after: str = "pass",
    limit: float = 20.0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> RuntimeResult:
    """Judge a program on some cases of MatMulInteger."""
    path = folder / "mine.py"
    path.write_text(PYTHON.format(before=before, answer=answer, after=after))
    chosen = runtime(f"batch:{shlex.quote(sys.executable)} {path}")
    return conform(
        suite, suite.select(["matmulinteger-10/types"])[:CASES], chosen, limit=limit, jobs=jobs, progress=progress
    )


@pytest.mark.parametrize(
    "told",
    [
        {"answer": "'{\"ok\": true}'"},
        {"answer": "json.dumps({'id': case['id']})", "jobs": 2},
        {"answer": "'a log\\n[1]\\n{broken\\n' + 'x' * 100000 + '\\n{}'"},
        {"after": "last = case['id']", "before": "number > 1 and print(json.dumps({'refused': 'late', 'id': last}))"},
        {"after": "break"},  # a program that ends after each answer
        {"after": "print('more ' * 9, flush=True); print('noise', file=sys.stderr)"},
    ],
)
def test_a_program_runs_many_cases(suite: Suite, tmp_path: Path, told: dict[str, str]) -> None:
    assert batch(suite, tmp_path, **told).counts["exact"] == CASES  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_what_an_ended_program_started_ends_before_the_next_one(suite: Suite, tmp_path: Path) -> None:
    """A program that ends after each answer, and leaves a process behind."""
    pids, living = tmp_path / "pids", list[int]()
    start = f"import subprocess; open({str(pids)!r}, 'a').write(str(subprocess.Popen(['sleep', '600']).pid) + ' ')"

    def count(done: int) -> None:
        time.sleep(0.3)  # the program has ended when the next case comes
        living.append(sum(runs(pid) for pid in pids.read_text().split()))

    def runs(pid: str) -> bool:
        try:
            return Path("/proc", pid, "cmdline").read_bytes() != b""  # empty: killed, but nobody has waited for it
        except OSError:
            return False

    assert batch(suite, tmp_path, before=start, after="break", progress=count).counts["exact"] == CASES
    assert max(living) == 1


@pytest.mark.parametrize(
    ("before", "verdict", "text"),
    [
        ('print(\'{"refused": "no such form"}\', flush=True); continue', "refused", "no such form"),
        ('print(\'{"unsupported": "no such type"}\', flush=True); continue', "unsupported", "no such type"),
        ("print(json.dumps({'refused': 'x ' * 50000}), flush=True); continue", "refused", "x x x"),
        (
            "print('{\"ok\": false}', flush=True); continue",
            "crashed",
            "answered '{\"ok\": false}', which is none of {}",
        ),
        (
            "print('{\"refused\": null}', flush=True); continue",
            "crashed",
            "answered '{\"refused\": null}', which is none",
        ),
        (
            "print('{\"y\": 1}' + ' ' * 99999, flush=True); continue",
            "crashed",
            "answered '{\"y\": 1}', which is none of {}",
        ),
        ('print(\'{"id": "other"}\', flush=True); continue', "crashed", "answered for case other"),
        ("print('{}\\n{}', flush=True); continue", "crashed", "answered twice"),
        (
            "import shutil; shutil.rmtree(Path(case['model']).parent); print('{}', flush=True); continue",
            "wrong",
            "no output",
        ),
        ("print('because', file=sys.stderr); sys.exit(7)", "crashed", "exit code 7: because"),
        ("sys.exit(0)", "crashed", "exit code 0"),
        ("os.abort()", "crashed", "SIGABRT"),
        ("time.sleep(60)", "hung", "no answer in 4 s"),
        ("os.close(1); time.sleep(60)", "crashed", "it closed its pipe"),
        ("print('{}', flush=True); continue", "wrong", "no output; expected"),
        ("[print('x' * 1000) for _ in range(9999)]; time.sleep(60)", "crashed", "wrote 1048576 bytes and no answer"),
        ("[print('x' * 1000, file=sys.stderr) for _ in range(9999)]; sys.exit(1)", "crashed", "exit code 1: xxx"),
    ],
)
def test_what_misbehaves_costs_one_case(suite: Suite, tmp_path: Path, before: str, verdict: str, text: str) -> None:
    """The program misbehaves on one case, and another process goes on."""
    name = suite.select(["matmulinteger-10/types"])[4].id
    found = batch(
        suite, tmp_path, before=f"if case['id'] == '{name}': {before}", limit=4.0 if "sleep" in before else 20.0
    )
    assert found.counts["exact"] == CASES - 1, [(case.verdict, case.text) for case in found.cases]
    assert found.cases[4].verdict == verdict
    assert text in found.cases[4].text


def test_a_second_answer_is_not_that_of_the_next_case(suite: Suite, tmp_path: Path) -> None:
    """It is written before qrun sends the next case."""
    name = suite.select(["matmulinteger-10/types"])[2].id
    after = f"case['id'] == '{name}' and print('{{\"refused\": \"more\"}}', flush=True)"
    found = batch(suite, tmp_path, after=after, progress=lambda done: time.sleep(1) if done == 3 else None)
    assert found.counts["exact"] == CASES - 1
    assert [case.text for case in found.cases if case.verdict == "crashed"] == ["answered twice"]


@pytest.mark.parametrize(
    ("before", "got"),
    [
        ("print('why', file=sys.stderr); sys.exit(1)", "no answer to the first 3 cases; the last: exit code 1: why"),
        ("time.sleep(60)", "no answer to the first 3 cases; the last: no answer in 2 s"),
        ('print(\'{"refused": "always"}\', flush=True); continue', "the same message in 12 cases"),
    ],
)
def test_a_program_that_never_answers_is_told(suite: Suite, tmp_path: Path, before: str, got: str) -> None:
    with pytest.raises(CallError) as caught:
        batch(suite, tmp_path, before=before, limit=2.0)
    assert dict(caught.value.facts)["got"] == got


@pytest.mark.parametrize("text", ["batch:", "batch:'mine", "batch:./no-such-program", "batch:mine {model}"])
def test_a_command_that_cannot_be_started_is_told(suite: Suite, text: str) -> None:
    with pytest.raises(CallError, match="this command cannot run cases"):
        conform(suite, suite.cases[:3], runtime(text))


def test_a_program_in_c_runs_cases(suite: Suite, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "mine.c").write_text(C)
    subprocess.run([compiler, "-o", tmp_path / "mine", tmp_path / "mine.c"], check=True)
    cases = suite.select(["matmulinteger-10/types/vectors", "matmulinteger-10/edge"])
    found = conform(suite, cases, runtime(f"batch:{tmp_path}/mine"))
    verdicts = {(case.id.split("/")[1], case.verdict) for case in found.cases}
    assert verdicts == {("types", "wrong"), ("edge", "refused")}
    assert {element.got for case in found.cases for element in case.elements} == {7.0}
