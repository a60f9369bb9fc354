"""``qrun conform export``: a release that is of use without qrun."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, says
from jsonschema import Draft202012Validator
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

from qrun.conform.export import FOLDERS, place_of
from qrun.conform.judge import judge_case
from qrun.conform.runtimes import Response
from qrun.conform.suite import ANSWER, Case, Suite

SELECT = (
    "known,qlinearconv-10/ties,qlinearconv-10/lenient,qlinearconv-10/rejects,quantizelinear-19,dequantizelinear-19,"
    "dynamicquantizelinear-11"
)
Judge = Callable[[Path, list[Any] | None, list[Any] | None], str]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite()


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "cases"
    done = call("conform", "export", str(folder), "--select", SELECT)
    assert done.code == 0, done.err
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def case_folders(folder: Path) -> list[Path]:
    return sorted(chain.from_iterable((folder / kind).glob("test_*") for kind in FOLDERS))


def arrays(folder: Path, kind: str) -> list[np.ndarray]:
    """The tensors input_0.pb, ... or output_0.pb, ... of a folder."""
    count = len(list(folder.glob(f"{kind}_*.pb")))
    paths = (folder / f"{kind}_{index}.pb" for index in range(count))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in paths]


def test_each_case_is_in_the_folder_of_what_is_due(suite: Suite, release: Path) -> None:
    infos = suite.select([SELECT])
    assert sorted(release / place_of(info) for info in infos) == case_folders(release)
    for info in infos:
        case, folder = suite.load(info), release / place_of(info)
        assert (folder / "model.onnx").read_bytes() == case.model
        for kind, due in (("input", case.inputs), ("output", case.expected)):
            found = arrays(folder / "test_data_set_0", kind)
            assert [(a.dtype, a.shape, a.tobytes()) for a in found] == [
                (a.dtype, a.shape, a.tobytes()) for a in due.values()
            ], info.id
        assert (folder / "data.json").exists() == bool(case.expected) == (folder.parent.name != "refusal")
    assert {path.parent.name for path in case_folders(release)} == set(FOLDERS)


def test_the_facts_of_a_case_have_a_schema(release: Path) -> None:
    schema = json.loads((release / "case.schema.json").read_text())
    assert schema == json.loads(files("qrun").joinpath("schemas/conform-case-1.0.json").read_text())
    validator = Draft202012Validator(schema)
    for folder in case_folders(release):
        validator.validate(json.loads((folder / "case.json").read_text()))
    told = json.loads((release / "decision/test_known_qlinearconv-r2/case.json").read_text())
    (output,) = told["outputs"]
    assert (told["basis"], output["exact"], output["margin"], output["near_tie"]) == ("decision", [0.5], [0.0], 2**-14)


def test_checksums_cover_every_file(release: Path) -> None:
    found = files_of(release)
    sums = {path: hashlib.sha256(data).hexdigest() for path, data in found.items() if path != "SHA256SUMS"}
    lines = [f"{sums[path]}  {path}\n" for path in sorted(sums)]
    assert found["SHA256SUMS"].decode() == "".join(lines)
    manifest = json.loads(found["manifest.json"])
    assert manifest["files"] == {path: sum for path, sum in sums.items() if path != "manifest.json"}
    rest = "".join(line for line in lines if not line.endswith(" manifest.json\n"))
    assert manifest["sha256"] == hashlib.sha256(rest.encode()).hexdigest()
    assert manifest["archive_sha256"] == Suite().sha256
    assert manifest["cases"] == sum(manifest[kind] for kind in FOLDERS) == len(case_folders(release))
    assert manifest["SPDX-License-Identifier"] == "Apache-2.0"
    assert "Apache License" in found["LICENSE"].decode()


def test_a_release_is_the_same_each_time(release: Path, tmp_path: Path) -> None:
    call("conform", "export", str(tmp_path / "again"), "--select", SELECT)
    assert files_of(release) == files_of(tmp_path / "again")
    says(call("conform", "export", str(release)), 2, "is not empty")


class Reference:
    """onnx.reference as a backend of ONNX's test runner."""

    @staticmethod
    def prepare(model: onnx.ModelProto, device: str) -> Any:
        class Prepared:
            def run(self, inputs: list[np.ndarray]) -> list[Any]:
                names = [value.name for value in model.graph.input]
                return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))

        return Prepared()

    @staticmethod
    def supports_device(device: str) -> bool:
        return device == "CPU"


def test_onnx_runs_the_cases(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader finds them with their tolerances, and its runner passes what is right and fails what is not."""
    (release / "qrun-node").symlink_to("node")
    try:
        cases = {case.name: case for case in load_model_tests(str(release), "qrun-node")}
    finally:
        (release / "qrun-node").unlink()
    assert cases.keys() == {path.name for path in (release / "node").iterdir()}
    monkeypatch.setattr("onnx.backend.test.runner.load_model_tests", lambda kind: [])
    runner = Runner(Reference)
    wanted = [
        "test_quantizelinear-19_types_uint8",
        "test_dequantizelinear-19_types_uint8",
        "test_known_qlinearmatmul-r1",
    ]
    chosen = [next(name for name in sorted(cases) if name.startswith(start)) for start in wanted]
    for name in chosen:
        cases[name].model_dir = str(release / "node" / name)
        runner._add_model_test(cases[name], "Qrun")
    result = runner.test_suite.run(__import__("unittest").TestResult())
    assert result.testsRun == 6
    assert [test._testMethodName for test, _ in [*result.failures, *result.errors]] == [f"{chosen[2]}_cpu"]
    assert (cases[chosen[0]].rtol, cases[chosen[0]].atol) == (0, 0)
    assert cases[chosen[1]].rtol == 1e-3


def judge(folder: Path, answer: list[Any] | None, again: list[Any] | None) -> str:
    """The verdict by the rules of the release's README.md, from its files alone. None: the runtime refuses."""
    case = json.loads((folder / "case.json").read_text())
    if answer is None:
        return "refused" if case["expects"] == "answer" else "exact"
    if case["expects"] == "refusal":
        return "accepts-invalid"
    due = arrays(folder / "test_data_set_0", "output")
    if all(map(equal, due, answer)):
        return "exact"
    if again is None or not all(map(equal, answer, again)):
        return "unstable"
    free = case["basis"] == "decision" or case["expects"] == "either"
    for other in case["alternatives"]:
        if all(map(equal, arrays(folder / other["folder"], "output"), answer)):
            return "choice" if free or other["open"] else "wrong"
    rows = [row for row in zip(case["outputs"], due, answer, strict=True) if not equal(*row[1:])]
    if all(is_ulp(*row) for row in rows):
        return "ulp"
    return "choice" if free or all(is_near(*row) for row in rows) else "wrong"


def elements(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[float, float]]:
    return zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind in "iub" or a.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return bool((a == b).all())
    return all((x != x and y != y) or (x == y and np.signbit(x) == np.signbit(y)) for x, y in elements(a, b))


def is_ulp(output: dict[str, Any], a: np.ndarray, b: np.ndarray) -> bool:
    if "rtol" not in output or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with np.errstate(all="ignore"):
        neighbours = (np.nextafter(b, a) == a).ravel()
    for (x, y), neighbour in zip(elements(a, b), neighbours, strict=True):
        if (x != x and y != y) or x == y:
            continue
        limit = max(output["within"], output["atol"] + output["rtol"] * abs(x))
        if not (np.isfinite([x, y]).all() and (abs(x - y) <= limit or neighbour)):
            return False
    return True


def is_near(output: dict[str, Any], a: np.ndarray, b: np.ndarray) -> bool:
    if "near_tie" not in output or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    rows = zip(elements(a, b), map(float, output["margin"]), strict=True)
    return all(abs(x - y) == 1 and 0 < m <= output["near_tie"] for (x, y), m in rows if x != y)


def answers(case: Case, rng: np.random.Generator) -> Iterator[list[np.ndarray]]:
    """The expected answer, the alternatives, and others: off by one, by some ULP, in a sign, in the form."""
    due = list(case.expected.values())
    yield due
    yield from (list(other.outputs.values()) for other in case.alternatives)
    yield [array.reshape(-1)[:-1] for array in due]
    for size in (1, 1, 1, 2, 1000, 10**6):
        yield [moved(array, case.margin.get(name), size, rng) for name, array in case.expected.items()]
    yield [np.where(array == 0, -array, array) if array.dtype.kind == "f" else array for array in due]


def moved(array: np.ndarray, margin: np.ndarray | None, size: int, rng: np.random.Generator) -> np.ndarray:
    """Some elements, most often those near a tie, moved by a number of codes or of ULP."""
    kind = np.dtype(f"i{array.dtype.itemsize}")
    chosen = rng.random(array.shape) < 0.4
    if margin is not None and rng.random() < 0.7:
        chosen &= margin <= 1e-4
    step = np.asarray(rng.choice([-size, size])).astype(kind)
    return (array.view(kind) + chosen.astype(kind) * step).astype(kind).view(array.dtype)


def test_verdicts_follow_from_the_files_alone(suite: Suite, release: Path) -> None:
    rng, seen = np.random.default_rng(7), set()
    for info in suite.select([SELECT])[::6]:
        case, folder = suite.load(info), release / place_of(info)
        refused = judge_case(case, Response({}, "refused", "no")).verdict
        assert judge(folder, None, None) == refused, info.id
        for made in answers(case, rng) if info.expects != "refusal" else [[np.zeros(1, np.uint8)]]:
            given = Response(dict(zip(case.expected or ["y0"], made, strict=True)))
            verdict = judge_case(case, given, lambda given=given: [given]).verdict
            assert judge(folder, made, made) == verdict, (info.id, made)
            seen.add(verdict)
    assert seen == {"exact", "choice", "ulp", "wrong", "accepts-invalid"}
    first = next(info for info in suite.select([SELECT]) if info.expects == ANSWER)
    assert judge(release / place_of(first), [np.zeros(1, bool)], [np.ones(1, bool)]) == "unstable"


def test_the_changes_account_for_every_case(suite: Suite) -> None:
    """Of the 2,517 cases of suite 1.0, each is withdrawn or is still here."""
    changes, ids = suite.changes, {info.id for info in suite.cases}
    assert changes["since"] == "1.0"
    assert len(ids) == 2517 - len(changes["withdrawn"]) + changes["new"]
    assert not ids & set(changes["withdrawn"])
    assert ids >= {*changes["question"], *changes["answer"], *changes["lenient"]}


def test_the_change_log_names_what_changed(tmp_path: Path, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrun.conform.export import export

    changes = {"since": "1.0", "new": 7, "withdrawn": ["a/b"], "question": [], "answer": ["c/d", "e"], "lenient": []}
    monkeypatch.setattr(suite, "changes", changes)
    export(suite, suite.cases[:1], tmp_path, lambda done: None)
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert "Since 1.0, 7 cases are new." in text
    assert "### Withdrawn (1)\n\n- `a/b`\n" in text
    assert "(2)\n\n- `c/d`\n- `e`\n" in text
    assert "Another model" not in text
