"""``qrun report``: what it runs, reads, writes and refuses."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from helpers.cli import call, conv_model, deep_model, npy, process, quantize_model, save, says, sum_model
from helpers.page import Read

from qrun.report.html.made import report

SCHEMA = json.loads(files("qrun").joinpath("schemas/report-1.0.json").read_text())
RUN = ("-i", "x.npy", "-n", "3", "--config", "none")


@pytest.fixture(autouse=True)
def model(folder: Path) -> None:
    save(deep_model(3), folder / "m.onnx")
    npy(folder / "x.npy", np.arange(192, dtype=np.uint8).reshape(1, 3, 8, 8))


def made(path: str = "m.html") -> Read:
    read = Read(Path(path).read_text(encoding="utf-8"))
    jsonschema.validate(read.data, SCHEMA)
    return read


# A model


def test_what_it_says_fits_the_width() -> None:
    ended = call("report", "m.onnx", *RUN, "--against", "onnx-ref", "-o", "m.html", env={"COLUMNS": "60"})
    lines = (ended.out + ended.err).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("compare  "))
    assert lines[at + 1].startswith(" " * 9), lines
    assert max(map(len, lines)) <= 60, lines


DIGITS = Path(__file__).resolve().parent.parent.parent / "models" / "digits"
QDQ, FLOAT = (str(DIGITS / form / "model.onnx") for form in ("qdq", "float"))
IMAGES = ("-i", str(DIGITS / "x.npy"), "--config", "none")


def test_a_float_model_is_compared_too(folder: Path) -> None:
    """The page then has the cost of each node, and the graph has colours by SQNR."""
    ended = call("report", QDQ, *IMAGES, "-n", "3", "--against", FLOAT, "-o", "m.html")
    assert ended.code == 0, ended.err
    read = made()
    assert told(read, "compare", "kind") == "models"
    assert "SQNR" in ended.out.splitlines()[2]
    assert [name for name, _ in read.elements].count("option") == 2
    page = report(QDQ, {"images": np.load(DIGITS / "x.npy")}, runs=2, against=FLOAT)
    assert "What costs most, one node at a time" in page, "from Python, too"
    ended = call("report", QDQ, *IMAGES, "--against", "none.onnx", "-o", "none.html")
    says(ended, 2, "none.onnx")
    assert "profile" not in ended.out, "before anything is measured"


@pytest.mark.parametrize(
    ("command", "against"),
    [
        (("profile", QDQ, *IMAGES, "-n", "3"), ()),
        (("compare", QDQ, *IMAGES, "--against", "ort"), ("--against", "ort")),
        (("compare", FLOAT, QDQ, *IMAGES), ("--against", FLOAT)),
    ],
    ids=["profile", "runtimes", "models"],
)
def test_headings_and_columns_are_those_of_the_terminal(
    command: tuple[str, ...], against: tuple[str, ...], folder: Path
) -> None:
    """A reader of both finds the same words; "Whole model" is the page's head, and a sorted table needs no sum."""
    if "ort" in against:
        pytest.importorskip("onnxruntime")
    call("report", QDQ, *IMAGES, "-n", "3", *against, "-o", "m.html")
    page = Path("m.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h[23][^>]*>([^<]*)", page)
    tables = {tuple(rows[0]) for rows in made().tables}
    title, seen = "", 0
    lines = call(*command, "--format", "markdown").out.splitlines()
    for line, after in zip(lines, lines[1:], strict=False):
        title = line.strip("*") if line.startswith("**") else title
        if not re.fullmatch(r"\|( -{3}:? \|)+", after):
            continue
        columns = [cell.strip(" \\") for cell in line.strip("|").split("|")]
        if title in ("Whole model", "Causes (qrun explain CAUSE)"):
            continue
        seen += 1
        assert any(title.startswith(heading) for heading in headings), title
        assert any({*columns} - {"sum", ""} <= {*table} for table in tables), (title, columns)
    assert seen > 1


def told(read: Read, *path: str) -> Any:
    """What the documents in a page tell."""
    found: Any = read.data["documents"]
    for word in path:
        found = found[word]
    return found


def test_a_page_of_a_model(folder: Path) -> None:
    ended = call("report", "m.onnx", *RUN, "-o", "m.html")
    assert ended.code == 0, ended.err
    check, profile, written = ended.out.splitlines()
    assert re.fullmatch(r"check    \d+ rules, 3 nodes: nothing found", check)
    assert re.fullmatch(r"profile  3 runs: median [\d.]+ [mu]?s", profile)
    assert re.fullmatch(r"m\.html  [\d.]+ kB, no network needed", written)
    read = made()
    text = " ".join(read.texts)
    assert told(read, "profile", "model", "path") == "m.onnx"
    assert told(read, "profile", "model", "bytes") == os.path.getsize("m.onnx")
    assert "QOperator int8" in text
    assert "image uint8 [1,3,8,8] from x.npy" in text
    assert "qrun report m.onnx -i x.npy -n 3 --config none -o m.html" in text
    assert sorted(row[0] for row in read.table("ran by")[1:]) == ["0", "1", "2"]
    assert [t["name"] for t in told(read, "quantization", "tensors")][:2] == ["image", "w"]
    assert len(told(read, "quantization", "tensors")) == 5
    assert "median of 3 runs" in text
    assert sorted(os.listdir()) == ["m.html", "m.onnx", "x.npy"]


def test_what_the_tensors_hold_is_counted(folder: Path) -> None:
    call("report", "m.onnx", *RUN, "-o", "m.html")
    image = next(t for t in told(made(), "quantization", "tensors") if t["name"] == "image")
    assert (image["used"], image["at_low"], image["at_high"], image["size"]) == ([0, 191], 1, 0, 192)


def test_values_of_the_run_are_checked(folder: Path) -> None:
    save(quantize_model(0.001, np.uint8(128)), folder / "q.onnx")
    npy(folder / "f.npy", np.linspace(-1, 1, 100, dtype=np.float32))
    ended = call("report", "q.onnx", "-i", "f.npy", "-n", "1", "-o", "q.html")
    assert "1 warning" in ended.out.splitlines()[0]
    assert "QR402" in {f["rule"] for f in told(made("q.html"), "check", "models")[0]["findings"]}


@pytest.mark.parametrize("backend", ["reference", "onnx-ref"])
def test_other_backends(backend: str, folder: Path) -> None:
    ended = call("report", "m.onnx", *RUN, "--backend", backend, "-o", "m.html")
    assert ended.code == 0, ended.err
    assert told(made(), "profile", "environment", "backend") == backend
    assert len(told(made(), "quantization", "tensors")) == 5


def test_a_comparison(folder: Path) -> None:
    ended = call("report", "m.onnx", *RUN, "--against", "reference", "-o", "m.html")
    assert re.search(r"^compare  .*reference.*: equal", ended.out, re.MULTILINE), ended.err
    assert [t["identical"] for t in told(made(), "compare", "tensors")] == [True] * 3
    assert "bit for bit, 3 tensors" in " ".join(made().texts)


def test_random_inputs_are_said(folder: Path) -> None:
    ended = call("report", "m.onnx", "-n", "1", "-o", "m.html")
    assert "random" in ended.err
    assert "random, seed 0" in told(made(), "profile", "inputs")[0]["source"]


def test_a_model_from_stdin(folder: Path) -> None:
    ended = call("report", "-", *RUN, "-o", "m.html", stdin=Path("m.onnx").read_bytes())
    assert ended.code == 0, ended.err
    assert told(made(), "profile", "model", "nodes") == 3


def test_the_default_name_and_quiet(folder: Path) -> None:
    ended = call("report", "m.onnx", *RUN, "-q")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    made("qrun-report.html")


def test_a_page_on_stdout(folder: Path) -> None:
    ended = call("report", "m.onnx", *RUN, "-o", "-")
    assert ended.raw.startswith(b"<!DOCTYPE html>")
    assert ended.raw.endswith(b"</html>\n")
    assert "profile  3 runs" in ended.err
    assert sorted(os.listdir()) == ["m.onnx", "x.npy"]


def test_it_fails_before_it_writes(folder: Path) -> None:
    says(call("report", "m.onnx", *RUN, "--max-memory", "300", "-o", "m.html"), 5, "QR010")
    save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / "bad.onnx")
    assert call("report", "bad.onnx", *RUN, "-o", "m.html").code == 5
    assert not Path("m.html").exists()


@pytest.mark.parametrize("target", ["m.onnx", "x.npy", "link.onnx", "none/m.html", "."])
def test_where_a_page_cannot_go(target: str, folder: Path) -> None:
    os.symlink("m.onnx", "link.onnx")
    before = {name: Path(name).read_bytes() for name in ("m.onnx", "x.npy")}
    says(call("report", "m.onnx", *RUN, "-o", target), 2, "QR008")
    assert {name: Path(name).read_bytes() for name in before} == before


def test_an_interrupted_profile_is_still_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    import qrun.running.session

    whole, calls = qrun.running.session.Session.execute, []

    def execute(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return whole(*args, **more)

    monkeypatch.setattr(qrun.running.session.Session, "execute", execute)
    ended = call("report", "m.onnx", "-i", "x.npy", "-n", "100", "-o", "m.html")
    assert ended.code == 130
    assert re.search(r"interrupted after \d of 100 runs", ended.err)
    assert re.search(r"median of [1-5] runs?,|one run", " ".join(made().texts))


def test_the_date_of_the_sources(folder: Path) -> None:
    call("report", "m.onnx", *RUN, "-o", "m.html", env={"SOURCE_DATE_EPOCH": "86399"})
    assert made().data["date"] == "1970-01-01"
    ended = call("report", "m.onnx", *RUN, "-o", "m.html", env={"SOURCE_DATE_EPOCH": "soon"})
    assert (ended.code, "SOURCE_DATE_EPOCH" in ended.err) == (2, True)


# Saved results


@pytest.fixture
def saved(folder: Path) -> None:
    Path("check.json").write_text(call("check", "m.onnx", "--json").out)
    Path("profile.json").write_text(call("profile", "m.onnx", *RUN, "--json").out)
    Path("run.json").write_text(call("m.onnx", "-i", "x.npy", "--json").out)


@pytest.mark.usefixtures("saved")
def test_saved_results(folder: Path) -> None:
    ended = call("report", "check.json", "profile.json", "-o", "m.html")
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(r"m\.html  [\d.]+ kB, no network needed\n", ended.out)
    read = made()
    profile = json.loads(Path("profile.json").read_text())
    assert told(read, "profile", "run", "median_ms") == profile["run"]["median_ms"]
    assert [n["index"] for n in told(read, "profile", "nodes")] == [0, 1, 2]
    assert len(told(read, "check", "models")[0]["rules"]) > 40
    assert "quantization" not in read.data["documents"]
    assert told(read, "profile", "model", "sha256") == profile["model"]["sha256"]


@pytest.mark.usefixtures("saved")
def test_a_saved_run(folder: Path) -> None:
    assert call("report", "run.json", "-o", "m.html").code == 0
    read = made()
    assert "one run" in " ".join(read.texts)
    assert "p90" not in read.table("ran by")[0]
    assert "1 note , first QR414 few-codes" in " ".join(read.texts)


def test_a_saved_comparison(folder: Path) -> None:
    text = call("compare", "m.onnx", "-i", "x.npy", "--against", "native", "--json").out
    Path("compare.json").write_text(text)
    assert call("report", "compare.json", "-o", "m.html").code == 0
    assert [t["identical"] for t in told(made(), "compare", "tensors")] == [True] * 3
    Path("models.json").write_text(call("compare", "m.onnx", "m.onnx", "-i", "x.npy", "--json").out)
    ended = call("report", "models.json", "-o", "m.html")
    assert ended.code == 0, ended.err
    assert told(made(), "compare", "kind") == "models"


@pytest.mark.usefixtures("saved")
def test_the_same_bytes_of_the_same_results(folder: Path) -> None:
    pages = []
    for seed in ("1", "2"):
        env = {"SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": seed}
        pages.append(process("report", "check.json", "profile.json", "-o", "-", env=env, cwd=folder).raw)
    assert pages[0] == pages[1]
    assert len(pages[0]) > 10_000


def test_findings_of_several_models_name_them(folder: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / name)
    Path("check.json").write_text(call("check", ".", "--json").out)
    assert call("report", "check.json", "-o", "m.html").code == 0
    assert {"a.onnx: #0 /stem/conv", "b.onnx: #0 /stem/conv"} <= {
        row[0].partition(" (")[0] for row in made().table("what")[1:]
    }
    assert "3 models" in " ".join(made().texts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": "qrun/check/2.0", "models": []}', "version of qrun"),
        ('{"schema": "qrun/bench/1.0"}', "qrun/check/1.x"),
        ('{"schema": 3}', "schema"),
        ("[1, 2]", "schema"),
        ("{", "JSON"),
        ("", "JSON"),
        ('{"schema": "qrun/run/1.0", "error": {"message": "no such file"}}', "no such file"),
        ('{"schema": "qrun/profile/1.0", "nodes": 5}', "run"),
        (
            '{"schema": "qrun/check/1.0", "models": [{"findings": [{"message": "m", "index": "two"}]}]}',
            "models[0].findings[0].index",
        ),
        ('{"schema": "qrun/compare/1.0", "kind": "files"}', "two runtimes"),
    ],
)
def test_what_is_not_a_result(text: str, words: str, folder: Path) -> None:
    Path("saved.json").write_text(text)
    says(call("report", "saved.json", "-o", "m.html"), 2, "QR007", words)
    assert not Path("m.html").exists()


@pytest.mark.usefixtures("saved")
def test_mixed_sources(folder: Path) -> None:
    save(sum_model(), folder / "other.onnx")
    ended = call("report", "m.onnx", "profile.json", "-o", "m.html")
    assert (ended.code, "QR005" in ended.err) == (2, True)
    assert "models" in ended.err
    assert "profile.json" in ended.err
    assert call("report", "profile.json", "-o", "profile.json").code == 2
    assert call("report", "missing.json", "-o", "m.html").code == 2
    assert call("report", "missing.onnx", "-o", "m.html").code == 2
    assert not Path("m.html").exists()


# Side by side


@pytest.mark.usefixtures("saved")
def test_saved_results_of_two_models_stand_side_by_side(folder: Path) -> None:
    save(deep_model(2), folder / "other.onnx")
    Path("other-profile.json").write_text(call("profile", "other.onnx", *RUN, "--json").out)
    Path("other-run.json").write_text(call("other.onnx", "-i", "x.npy", "--json").out)
    Path("both.json").write_text(call("check", "m.onnx", "other.onnx", "--json").out)
    sources = ["profile.json", "run.json", "other-profile.json", "other-run.json", "both.json"]
    ended = call("report", *sources, "-o", "m.html")
    assert ended.code == 0, ended.err
    read = made()
    assert [set(documents) for documents in (read.data["documents"], *read.data["others"])] == [
        {"profile", "run", "check"}
    ] * 2
    assert [d["profile"]["model"]["path"] for d in (read.data["documents"], *read.data["others"])] == [
        "m.onnx",
        "other.onnx",
    ]
    facts = {row[0]: row[1:] for row in read.table("fact")}
    assert facts["fact"] == ["m.onnx", "other.onnx"]
    assert facts["nodes"] == ["3", "2"]
    assert facts["runs"] == ["3", "3"]
    assert facts["findings"] == ["no findings", "no findings"]
    nodes = {row[0]: row[1:] for row in read.table("node")[1:]}
    assert len(nodes) == 3
    assert sum("-" in cells for cells in nodes.values()) == 1, "a node that only the first has"
    text = " ".join(" ".join(read.texts).split())
    assert "other.onnx: inconclusive against m.onnx" in text
    assert "too few runs to tell" in text


@pytest.mark.usefixtures("saved")
def test_two_results_of_one_model_stand_side_by_side(folder: Path) -> None:
    after = json.loads(Path("profile.json").read_text())
    before = json.loads(Path("profile.json").read_text())
    for document, sample in ((before, 2.0), (after, 1.0)):
        document["run"] = {"median_ms": sample, "samples_ms": [sample + place / 100 for place in range(20)]}
    Path("before.json").write_text(json.dumps(before))
    Path("after.json").write_text(json.dumps(after))
    assert call("report", "before.json", "after.json", "-o", "m.html").code == 0
    read = made()
    text = " ".join(" ".join(read.texts).split())
    assert (
        "m.onnx (after.json) is faster than m.onnx (before.json): 1.00 ms against 2.00 ms a run, 50.0 % of its time"
        in text
    )
    facts = {row[0]: row[1:] for row in read.table("fact")}
    assert facts["fact"] == ["m.onnx (before.json)", "m.onnx (after.json)"]
    assert '<b class="good">1.00 ms</b>' in Path("m.html").read_text()


def test_several_models_are_measured_one_after_the_other(folder: Path) -> None:
    save(deep_model(2), folder / "other.onnx")
    ended = call("report", "m.onnx", "other.onnx", *RUN, "-o", "m.html")
    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()] == ["check", "profile"] * 2 + ["m.html"]
    read = made()
    assert read.table("fact")[0] == ["fact", "m.onnx", "other.onnx"]
    assert "quantization" in read.data["others"][0]


def test_all_models_are_readable_before_one_is_measured(folder: Path) -> None:
    Path("late.onnx").write_text("# no model")
    for late, code in (("late.onnx", 3), ("missing.onnx", 2)):
        ended = call("report", "m.onnx", late, *RUN, "-o", "m.html")
        assert (ended.code, ended.out) == (code, ""), ended.out
        assert late in ended.err


def test_candidates_stand_side_by_side(folder: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        save(deep_model(3), folder / name)
    text = call("compare", "m.onnx", "a.onnx", "b.onnx", "-i", "x.npy", "--json").out
    Path("candidates.json").write_text(text)
    assert call("report", "candidates.json", "-o", "m.html").code == 0
    read = made()
    assert [d["compare"]["kind"] for d in (read.data["documents"], *read.data["others"])] == ["models", "models"]
    Path("one.json").write_text(json.dumps({**json.loads(text), "candidates": json.loads(text)["candidates"][:1]}))
    assert call("report", "one.json", "-o", "one.html").code == 0
    assert "others" not in made("one.html").data


@pytest.mark.usefixtures("saved")
def test_a_check_of_several_models_must_have_one_of_the_page(folder: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        save(sum_model(), folder / name)
    Path("else.json").write_text(call("check", "a.onnx", "b.onnx", "--json").out)
    ended = call("report", "else.json", "profile.json", "-o", "m.html")
    assert (ended.code, "different models" in ended.err) == (2, True)
    assert all(name in ended.err for name in ("else.json: a.onnx, sha256", "profile.json: m.onnx, sha256"))
    assert not Path("m.html").exists()


def test_help() -> None:
    text = call("report", "-h").out
    assert "Write one self-contained HTML page." in text
    assert "qrun report check.json profile.json -o m.html" in text
    assert "qrun report a.json b.json" in text
    assert "report.html]" in text
    assert "report" in call("--help").out
