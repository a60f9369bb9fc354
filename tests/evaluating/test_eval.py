"""``qrun eval``: what it says equals plain arithmetic on single runs, whatever the samples come from; and its page."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from evaluating.conftest import MODELS, Digits
from helpers.cli import Ended, call, fixes
from helpers.models import make_model
from onnx import helper, numpy_helper, parser
from scipy.stats import binomtest

import qrun
from qrun.evaluating.evaluation import Evaluator
from qrun.evaluating.job import Done
from qrun.ir import Array

SCHEMA = json.loads(files("qrun").joinpath("schemas/eval-1.0.json").read_text())
FORMS = ("qdq", "qoperator", "dynamic")
FLOAT = MODELS / "float" / "model.onnx"


def model(form: str) -> Path:
    return MODELS / form / "model.onnx"


def logits(path: Path, images: Array) -> Array:
    """What single runs give."""
    session = qrun.Session(path)
    return np.concatenate([session.run({"images": image[None]})["logits"] for image in images])


def told(ended: Ended) -> dict[str, Any]:
    assert ended.code in (0, 1), ended.err
    jsonschema.validate(ended.json, SCHEMA)
    return ended.json


def scores(found: dict[str, Any], place: int) -> dict[str, dict[str, Any]]:
    return {score["metric"]: score for score in found["models"][place]["scores"]}


def test_a_table_of_models_equals_plain_arithmetic(digits: Digits) -> None:
    found = told(call("eval", *map(model, FORMS), *digits.options, "--against", FLOAT, "--json"))
    want = logits(FLOAT, digits.images)
    right = want.argmax(axis=1) == digits.labels
    assert [one["label"] for one in found["models"]] == [*(str(model(form)) for form in FORMS), str(FLOAT)]
    for place, form in enumerate(FORMS):
        got, score = logits(model(form), digits.images), scores(found, place)
        own = got.argmax(axis=1) == digits.labels
        limits = binomtest(int(own.sum()), len(own)).proportion_ci(method="wilson")
        assert score["top1"]["value"] == own.mean()
        assert (score["top1"]["low"], score["top1"]["high"]) == pytest.approx((limits.low, limits.high), abs=1e-12)
        ranks = (got > got[np.arange(len(got)), digits.labels][:, None]).sum(axis=1)
        assert score["top5"]["value"] == pytest.approx((ranks < 5).mean())
        assert score["argmax"]["value"] == (got.argmax(axis=1) == want.argmax(axis=1)).mean()
        apart = got.astype(np.float64) - want
        assert score["mean_abs"]["value"] == pytest.approx(np.abs(apart).mean(), rel=1e-12)
        assert score["max_abs"]["value"] == np.abs(apart).max()
        assert score["sqnr_db"]["value"] == pytest.approx(
            10 * np.log10((want.astype(np.float64) ** 2).sum() / (apart**2).sum())
        )
        cosines = (got.astype(np.float64) * want).sum(axis=1) / np.linalg.norm(got.astype(np.float64), axis=1) / np.linalg.norm(want.astype(np.float64), axis=1)  # fmt: skip
        assert score["cosine"]["value"] == pytest.approx(cosines.mean(), rel=1e-12)
        assert score["cosine"]["low"] <= score["cosine"]["value"] <= score["cosine"]["high"]
        (difference,) = found["models"][place]["differences"]
        assert (difference["lost"], difference["won"]) == ((right & ~own).sum(), (own & ~right).sum())
        worst = found["models"][place]["worst"][0]
        ratios = (apart**2).sum(axis=1) / (want.astype(np.float64) ** 2).sum(axis=1)
        assert worst["place"] == ratios.argmax()
        assert worst["sqnr_db"] == pytest.approx(-10 * np.log10(ratios.max()))
        assert worst["max_abs"] == np.abs(apart[worst["place"]]).max()


def test_kept_outputs_are_those_of_single_runs(digits: Digits, tmp_path: Path) -> None:
    call("eval", model("qdq"), *digits.options, "-o", "out", "--limit", "300")
    parts = []
    for path in sorted((tmp_path / "out").glob("chunk-*.npz")):
        with np.load(path) as chunk:
            parts.append((chunk["samples"], chunk["outputs/0/logits"]))
    assert np.array_equal(np.concatenate([part[0] for part in parts]), np.arange(300))
    want = logits(model("qdq"), digits.images[:300])
    assert np.concatenate([part[1] for part in parts]).tobytes() == want.tobytes()


def saved(tmp_path: Path, images: Array, how: str) -> list[str]:
    """The same samples in another form."""
    folder = tmp_path / "samples"
    folder.mkdir()
    if how in ("npz", "packed", "named"):
        write = np.savez_compressed if how == "packed" else np.savez
        write(folder / "all.npz", images=images)
        if how == "named":
            np.save(folder / "all.npy", images)
            return [f"images={folder / 'all.npy'}"]
        return [str(folder / "all.npz")]
    if how == "fortran":
        np.save(folder / "all.npy", np.asfortranarray(images))
        return [str(folder / "all.npy")]
    if how == "big-endian":
        np.save(folder / "all.npy", images.astype(">f4"))
        return [str(folder / "all.npy")]
    for place, image in enumerate(images):
        if how == "sets":
            (folder / f"test_data_set_{place}").mkdir()
            tensor = numpy_helper.from_array(image[None], "images")
            (folder / f"test_data_set_{place}" / "input_0.pb").write_bytes(tensor.SerializeToString())
        else:
            np.save(folder / f"x{place}.npy", image if how == "without axis" else image[None])
    if how == "list":
        lines = [f"x{place}.npy  # an image" for place in range(len(images))]
        (folder / "list.txt").write_text("\n\n".join(lines))
        return [str(folder / "list.txt")]
    return [str(folder)]


@pytest.mark.parametrize(
    "how", ["npz", "packed", "named", "fortran", "big-endian", "files", "without axis", "sets", "list"]
)
def test_samples_of_every_form_score_the_same(digits: Digits, tmp_path: Path, how: str) -> None:
    np.save("y12.npy", digits.labels[:12])
    specs = saved(tmp_path, digits.images[:12], how)
    args = [part for spec in specs for part in ("-i", spec)]
    found = told(call("eval", model("qdq"), *args, "--labels", "y12.npy", "--against", FLOAT, "--json"))
    np.save("x12.npy", digits.images[:12])
    want = told(call("eval", model("qdq"), "-i", "x12.npy", "--labels", "y12.npy", "--against", FLOAT, "--json"))
    assert found["models"][0]["scores"] == want["models"][0]["scores"]
    assert found["samples"] == 12


def test_samples_from_stdin(digits: Digits) -> None:
    stream = io.BytesIO()
    np.save(stream, digits.images[:5])
    found = told(call("eval", model("qdq"), "-i", "-", "--against", FLOAT, "--json", stdin=stream.getvalue()))
    assert found["samples"] == 5
    assert found["source"] == "stdin"


def test_batches_and_threads_and_processes_do_not_matter(digits: Digits) -> None:
    args = ["eval", model("qdq"), *digits.options, "--against", FLOAT, "--limit", "700", "--json"]
    want = told(call(*args, "-j", "1"))["models"]
    assert told(call(*args, "-j", "2"))["models"] == want
    assert told(call(*args, "--batch", "7", "--threads", "2"))["models"] == want


def test_a_fixed_batch_is_filled(digits: Digits, tmp_path: Path) -> None:
    proto = qrun_model(4)
    (tmp_path / "four.onnx").write_bytes(proto.SerializeToString())
    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    np.save("x.npy", x)
    call("eval", "four.onnx", "-i", "x.npy", "-o", "out")
    with np.load(tmp_path / "out" / "chunk-000000.npz") as chunk:
        assert np.array_equal(chunk["outputs/0/y"], x * 2)


def qrun_model(batch: int | str) -> Any:
    twice = helper.make_node("Mul", ["x", "two"], ["y"])
    return make_model([twice], {"x": [batch, 3]}, {"y": [batch, 3]}, {"two": np.float32(2)}, opset=17)


def test_a_bad_sample_is_told_and_the_others_count(digits: Digits, tmp_path: Path) -> None:
    (folder := tmp_path / "samples").mkdir()
    for place in range(6):
        np.save(folder / f"x{place}.npy", digits.images[place])
    (folder / "x2.npy").write_bytes(b"\x93NUMPY broken")
    np.save(folder / "x4.npy", np.zeros((1, 9, 9), np.float32))
    np.save("y.npy", digits.labels[:6])
    args = ["eval", model("qdq"), "-i", "samples", "--labels", "y.npy"]
    found = told(call(*args, "--json"))
    assert found["failed"] == 2
    assert [(one["place"], Path(one["sample"]).name) for one in found["failures"]] == [(2, "x2.npy"), (4, "x4.npy")]
    assert scores(found, 0)["top1"]["count"] == 4
    shown = call(*args)
    assert shown.code == 0
    assert "2 samples could not be run" in shown.out
    assert "x4.npy" in shown.out
    stopped = call(*args, "--json", "--fail-fast").json["stopped"]
    assert stopped == "samples/x2.npy failed"


def test_nothing_that_can_be_run_is_exit_code_1(tmp_path: Path) -> None:
    (folder := tmp_path / "samples").mkdir()
    for place in range(2):
        (folder / f"x{place}.npy").write_bytes(b"nothing")
    shown = call("eval", model("qdq"), "-i", "samples", "--against", FLOAT)
    assert shown.code == 1
    assert shown.out.startswith("failed: none of 2 samples could be run")


@pytest.mark.parametrize(
    ("options", "code", "gate"),
    [(["--min-accuracy", "99"], 0, ""), (["--min-accuracy", "99.9"], 1, "--min-accuracy 99.9"),
     (["--min-agreement", "100%"], 0, ""), (["--max-drop", "0"], 0, "")],
)  # fmt: skip
def test_gates(digits: Digits, options: list[str], code: int, gate: str) -> None:
    shown = call("eval", model("qdq"), *digits.options, "--limit", "300", "--against", FLOAT, *options)
    assert shown.code == code, shown.out
    assert shown.out.startswith("failed: " if gate else "no significant difference")
    assert gate in shown.out
    (found, *_) = told(
        call("eval", model("qdq"), *digits.options, "--limit", "300", "--against", FLOAT, *options, "--json")
    )["gates"]
    assert found["passed"] is (code == 0)


def test_a_worse_model_is_said_to_be_worse(digits: Digits, tmp_path: Path) -> None:
    """The float model that never answers 9 loses all that are one."""
    import onnx

    proto = onnx.load(FLOAT)
    bias = next(t for t in proto.graph.initializer if t.dims == [10])
    values = numpy_helper.to_array(bias).copy()
    values[9] -= 100
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(proto, tmp_path / "blind.onnx")
    args = ["eval", "blind.onnx", *digits.options, "--limit", "400", "--against", FLOAT]
    shown = call(*args, "--max-drop", "1")
    assert shown.code == 1
    assert "failed: blind.onnx loses " in shown.out
    plain = call(*args)
    right = logits(FLOAT, digits.images[:400]).argmax(axis=1) == digits.labels[:400]
    lost = int((right & (digits.labels[:400] == 9)).sum())
    assert plain.out.startswith("worse: blind.onnx's top-1 is ")
    assert f"{lost} samples lost, 0 gained" in " ".join(plain.out.split())
    several = call("eval", model("qdq"), "blind.onnx", *args[2:])
    assert several.out.startswith("worse: blind.onnx's top-1 is "), several.out
    assert re.search(r"; 1 other model: [+-]\d\.\d\d points", " ".join(several.out.split()))
    assert several.code == plain.code == 0
    for options, red in ([], False), (["--max-drop", "1"], True):
        verdict = call(*args, "--color", "always", *options).out.splitlines()[0]
        assert bool(re.search(r"\x1b\[[0-9;]*31m", verdict)) is red, "exit code 0 is not red"


def test_it_stops_when_it_is_sure(digits: Digits) -> None:
    found = told(call("eval", model("qdq"), *digits.options, "--until-sure", "2", "--json"))
    score = scores(found, 0)["top1"]
    assert found["samples"] < 1797
    assert score["high"] - score["low"] <= 0.02
    assert re.fullmatch(r"top1 has a 95 % interval of 1\.\d points", found["stopped"])


def test_a_metric_of_ones_own(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "margins.py").write_text(
        "import numpy as np\n\ndef margin(outputs, label):\n    row = np.sort(outputs['logits'][0])\n    return row[-1] - row[-2]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    args = ["eval", model("qdq"), FLOAT, "-i", digits.folder / "x.npy", "--metric", "margins:margin", "--limit", "200"]
    found = told(call(*args, "--json"))
    rows = [np.sort(logits(path, digits.images[:200]), axis=1) for path in (model("qdq"), FLOAT)]
    means = [float((r[:, -1].astype(np.float64) - r[:, -2]).mean()) for r in rows]
    assert [scores(found, place)["margins:margin"]["value"] for place in (0, 1)] == pytest.approx(means, rel=1e-6)
    (difference,) = found["models"][1]["differences"]
    assert difference["value"] == pytest.approx(means[1] - means[0], rel=1e-5)
    (fix,) = fixes(call("eval", model("qdq"), "-i", digits.folder / "x.npy", "--metric", "margins:nothing"), 2, "QR005")
    assert "accuracy:score" in fix


def test_a_row_of_a_file_is_an_input(digits: Digits) -> None:
    found = call(model("qdq"), "-i", f"{digits.folder / 'x.npy'}[17]", "--json").json
    want = logits(model("qdq"), digits.images[17:18])
    assert np.array_equal(found["outputs"][0]["values"], want)
    (fix,) = fixes(call(model("qdq"), "-i", f"{digits.folder / 'x.npy'}[1797]"), 2, "QR007")
    assert fix


@pytest.mark.parametrize(
    ("args", "code"),
    [(["--resume"], "QR005"), (["--min-accuracy", "9"], "QR005"), (["--labels", "short.npy"], "QR003"),
     (["--labels", "floats.npy"], "QR007"), ([], "QR005"), (["--against", "nothing.onnx"], "QR004"),
     (["--dask", "tcp://x:1", "-j", "2", "--against", "ort"], "QR005"), (["--labels", "far.npy"], "QR003")],
)  # fmt: skip
def test_calls_that_do_not_fit(digits: Digits, args: list[str], code: str) -> None:
    np.save("short.npy", digits.labels[:9])
    np.save("floats.npy", digits.labels * 0.5)
    np.save("far.npy", digits.labels + 5)
    ended = call("eval", model("qdq"), "-i", digits.folder / "x.npy", *args)
    assert ended.code in (2, 3)
    assert f"error {code}" in ended.err


def test_samples_of_several_rows_where_the_batch_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples make a batch of the model: a file with both says what came, not what qrun made of it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }'
        ),
        "two.onnx",
    )
    Path("xs").mkdir()
    for number, rows in enumerate((1, 1, 2)):
        np.save(f"xs/{number}.npy", np.ones((rows, 4), np.float32))
    found = call("eval", "two.onnx", "-i", "xs", "--against", "two.onnx", "--json").json
    assert found["failed"] == 1
    assert found["failures"][0]["sample"] == "xs/2.npy"
    assert "has 2 rows: got float32 [2,4]" in found["failures"][0]["message"]
    np.save("xs/0.npy", np.ones((2, 4), np.float32))
    ended = call("eval", "two.onnx", "-i", "xs", "--against", "two.onnx")
    assert ended.code == 2
    assert "a sample of input 'x' has 2 rows" in ended.err
    assert "got      float32 [2,4]" in ended.err


@pytest.mark.parametrize(
    ("name", "told"), [("tfl-doubel", "did you mean --against tfl-double?"), ("nope", "explain arith")]
)
def test_an_arithmetic_that_does_not_exist(digits: Digits, name: str, told: str) -> None:
    ended = call("eval", model("qdq"), "-i", digits.folder / "x.npy", "--arith", "tfl-single", "--against", name)
    assert ended.code == 2
    assert f"--against {name} is no file, no runtime and no arithmetic" in " ".join(ended.err.split())
    assert told in ended.err


def test_markdown_and_csv(digits: Digits) -> None:
    args = ["eval", model("qdq"), *digits.options, "--limit", "50"]
    two = ["eval", model("qdq"), model("dynamic"), *digits.options, "--limit", "50", "--format", "csv"]
    table = list(csv.DictReader(io.StringIO(call(*two).out)))
    want = told(call(*two[:-2], "--json"))
    assert [row["model"] for row in table] == [str(model("qdq")), str(model("dynamic"))]
    for place, row in enumerate(table):
        assert float(row["top1"]) == scores(want, place)["top1"]["value"]
        assert float(row["top5_low"]) == scores(want, place)["top5"]["low"]
        assert row["samples"] == "50"
    markdown = call(*args, "--format", "markdown").out
    assert markdown.startswith("### qrun eval: accuracy: ")
    assert "| model | top-1 | top-5 |" in markdown
    value, low, high = (100 * scores(want, 0)["top1"][key] for key in ("value", "low", "high"))
    assert f" | {value:.2f} % ({low:.2f} to {high:.2f}) | " in call(*two[:-1], "markdown").out


def test_what_models_are_held_against_has_the_name_that_tells_it_apart(digits: Digits) -> None:
    shown = call("eval", model("qdq"), *digits.options, "--limit", "4", "--against", FLOAT).out
    assert "; against float/model.onnx;" in shown
    assert re.search(r"^  qdq/model.onnx +top-1 ", shown, re.M)
    assert "Samples on which qdq/model.onnx differs most from float/model.onnx" in shown


def test_narrow_screens(digits: Digits) -> None:
    args = ["eval", model("qdq"), model("dynamic"), *digits.options, "--against", FLOAT, "--limit", "50"]
    shown = call(*args, env={"COLUMNS": "80"}).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "top-1" in shown


def test_from_python(digits: Digits) -> None:
    pairs = ((image, label) for image, label in zip(digits.images[:40], digits.labels, strict=False))
    found = qrun.evaluate(model("qdq"), pairs, against=FLOAT)
    want = told(call("eval", model("qdq"), *digits.options, "--limit", "40", "--against", FLOAT, "--json"))
    assert found.samples == 40
    for score in found.models[0].scores:
        assert score.value == scores(want, 0)[score.metric]["value"]
    feeds = [{"images": image[None]} for image in digits.images[:4]]
    assert qrun.evaluate([model("qdq").read_bytes()], feeds, against=FLOAT).samples == 4


def test_against_another_runtime(digits: Digits) -> None:
    found = told(
        call("eval", model("qoperator"), "-i", digits.folder / "x.npy", "--against", "ort", "--limit", "40", "--json")
    )
    assert scores(found, 0)["argmax"]["value"] == 1.0
    assert found["against"] == "ort"


def test_a_chunk_is_an_archive_that_numpy_reads(digits: Digits, tmp_path: Path) -> None:
    call("eval", model("qdq"), *digits.options, "-o", "out", "--limit", "20")
    with zipfile.ZipFile(tmp_path / "out" / "chunk-000000.npz") as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read("chunk.json"))["count"] == 20


def test_the_progress_line_tells_the_score_so_far() -> None:
    from qrun.evaluating.evaluation import Running
    from qrun.evaluating.statistics import wilson
    from qrun.report.evaluation import progress_callback

    class Line:
        what, seen = "eval", ()

        def __call__(self, *state: Any) -> None:
            self.seen = state

    line = Line()
    progress_callback(line)(Running(300, 1797, 1200.4, 1.2, None, ""))  # type: ignore[arg-type]
    assert line.what == "eval"
    progress_callback(line)(Running(300, 1797, 1200.4, 1.2, wilson(299, 300), "top1"))  # type: ignore[arg-type]
    assert line.what == "top-1 99.7 % (98.1 to 99.9), 1200 a second"
    assert line.seen == (300, 1797, 1.2)


@pytest.mark.parametrize("shape", [[1, 3], [1, 3, 1, 1], [3]])
def test_classes_may_have_axes_of_one_around(shape: list[int], tmp_path: Path) -> None:
    reshape = helper.make_node("Reshape", ["x", "to"], ["y"])
    made = make_model([reshape], {"x": [1, 3]}, {"y": shape}, {"to": shape}, opset=17)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    np.save("x.npy", np.array([[0, 2, 1], [5, 1, 0]], np.float32))
    np.save("y.npy", np.array([1, 2]))
    found = told(call("eval", "m.onnx", "-i", "x.npy", "--labels", "y.npy", "--json"))
    assert scores(found, 0)["top1"]["value"] == 0.5


def test_all_samples_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    """More of them than are told in full."""
    (folder := tmp_path / "samples").mkdir()
    for place in range(130):
        (folder / f"x{place}.npy").write_bytes(b"nothing")
    np.save(folder / "x130.npy", np.zeros((1, 1, 8, 8), np.float32))
    found = told(call("eval", model("qdq"), "-i", "samples", "--against", FLOAT, "--json", "-j", "1"))
    assert (found["samples"], found["readable"], found["failed"], len(found["failures"])) == (131, 1, 130, 100)


def test_streamed_samples_want_a_label_each(digits: Digits) -> None:
    with pytest.raises(qrun.CallError, match="labels for"):
        qrun.evaluate(model("qdq"), iter(digits.images[:5]), labels=[0, 1, 2])


def test_models_that_are_alike_have_the_same_top1(digits: Digits) -> None:
    shown = call("eval", FLOAT, FLOAT, *digits.options).out.splitlines()
    assert "top-1 is the same as " in shown[0]


@pytest.mark.parametrize(("times", "told"), [((9.0, 1.0, 0.5, 2.0, 0.5), 0.5), ((9.0, 9.0, 9.0, 1.0, 2.0, 3.0), 2.0), ((9.0, 1.0, 1.0), None)])  # fmt: skip
def test_the_time_of_a_sample_is_that_of_a_plain_run(times: tuple[float, ...], told: float | None) -> None:
    """The first runs load and compile; a few runs tell no time."""
    made = Evaluator([("m", "0", ["y"])], [None])
    for at, time in enumerate(times):
        made.add(Done(at, at, 1, ({},), times=((time,),)), {})
    assert made.seconds_per_sample == (told,)


def test_no_time_is_told_of_runs_that_are_watched(digits: Digits) -> None:
    call_ = ("eval", FLOAT, *digits.options, "--json")
    plain, watched = (told(call(*call_, *more))["seconds_per_sample"] for more in ((), ("--health",)))
    assert (len(plain), plain == [None], watched) == (1, False, [None])


def saved_answer(name: str, *arguments: str | Path) -> str:
    Path(name).write_text(call(*arguments, "--json").out)
    return name


def test_scores_are_a_section_of_the_page(digits: Digits) -> None:
    model = MODELS / "qdq" / "model.onnx"
    args = ["eval", model, MODELS / "dynamic" / "model.onnx", *digits.options, "--limit", "60"]
    answer = saved_answer("eval.json", *args, "--against", MODELS / "float" / "model.onnx", "--health")
    assert call("report", answer, "-o", "alone.html").code == 0
    page = Path("alone.html").read_text()
    for words in (
        "No significant difference",
        "dynamic/model.onnx",
        "argmax agreement",
        "Samples on which qdq/model.onnx",
    ):
        assert words in page
    check = saved_answer("check.json", "check", model)
    assert call("report", answer, check, "-o", "both.html").code == 0
    assert "QR409" in Path("both.html").read_text()
    other = saved_answer("other.json", "check", MODELS / "qoperator" / "model.onnx")
    refused = call("report", answer, other, "-o", "none.html")
    assert refused.code == 2
    assert "these reports are of different models" in refused.err


def test_a_damaged_answer_is_refused(digits: Digits) -> None:
    args = ["eval", MODELS / "qdq" / "model.onnx", *digits.options, "--limit", "5"]
    answer = saved_answer("eval.json", *args)
    Path(answer).write_text(Path(answer).read_text().replace('"scores": [{', '"scores": [7, {'))
    refused = call("report", answer, "-o", "page.html")
    assert refused.code == 2
    assert "scores[0]" in refused.err
