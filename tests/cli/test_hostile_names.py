"""Names that are commands to the runner of a CI job, formulas to a spreadsheet, or that turn text round:
none gets through."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from helpers.cli import Ended, call, process, save
from helpers.models import make_model
from onnx import helper, numpy_helper

from qrun.report.formats import suffixes

START, ANYWHERE = "::error title=owned::", "##[stop-commands]owned"
FILE = f"a {ANYWHERE} ##vso[task.complete]\u202eb.onnx"
NODES = (
    f"  {START}",
    f"n {ANYWHERE}\n{START}",
    '=HYPERLINK("http://example.com")',
    "@sum\t+1",
    "-1+\u202ecmd\r::debug::",
)
CI = {"GITHUB_ACTIONS": "true"}


def hostile(scale: float = 0.5) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", [f"{START} x", "s", "z"], [f"{ANYWHERE} q"], name=NODES[0]),
        helper.make_node("DequantizeLinear", [f"{ANYWHERE} q", "s", "z"], [f"{START} r"], name=NODES[1]),
        helper.make_node("Relu", [f"{START} r"], ["a"], name=NODES[2]),
        helper.make_node("Neg", ["a"], ["b"], name=NODES[3]),
        helper.make_node("Abs", ["b"], [f"{START} y\u2028::notice::"], name=NODES[4]),
    ]
    stored = {"s": np.float32(scale), "z": np.uint8(0)}
    model = make_model(nodes, {f"{START} x": [2]}, {f"{START} y\u2028::notice::": [2]}, stored)
    model.producer_name = model.graph.name = model.doc_string = model.graph.doc_string = f"\n{START} {ANYWHERE}"
    return model


@pytest.fixture
def files(folder: Path) -> Path:
    save(hostile(), folder / FILE)
    save(hostile(0), folder / "zero.onnx")
    for name in ("test_data_set_0", f"test_data_set_{ANYWHERE}"):
        (folder / name).mkdir()
        for kind in ("input", "output"):
            data = numpy_helper.from_array(np.float32([1, 77])).SerializeToString()
            (folder / name / f"{kind}_0.pb").write_bytes(data)
    return folder


def commands(ended: Ended) -> list[str]:
    """Lines that a runner takes for commands: GitHub's of both kinds, those of Azure Pipelines and of TeamCity."""
    lines = re.split(r"[\n\r\u0085\u2028\u2029]", ended.out + "\n" + ended.err)
    bare = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    return [line for line in bare if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)]


def signs(text: str) -> set[str]:
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\x1b"}


CALLS = [
    *(["check", FILE, "zero.onnx", "-v", "--format", f] for f in suffixes() if f != "github"),
    ["check", FILE, "--select", START],
    ["check", f"{START}.onnx"],
    *(["run", FILE, "--random", *more] for more in ([], ["-v"], ["--json"], ["-t", "*"], ["-t", START])),
    *(["run", FILE, *more] for more in (["-i", f"{START}=x.npy"], ["-i", f"{ANYWHERE}=[1]"], [f"{START}"])),
    *(["profile", FILE, "--random", "-n", "5", "--format", f] for f in ("text", "json", "markdown", "csv")),
    ["profile", FILE, "--random", "-n", "5", "--by", "op", "--format", "csv"],
    *(["compare", FILE, "zero.onnx", "--random", "--format", f] for f in ("text", "json", "markdown")),
    *(["compare", FILE, "--against", "onnx-ref", "--random", "--format", f] for f in ("text", "json", "markdown")),
    ["inspect", FILE],
    ["inspect", FILE, "--nodes"],
    ["inspect", FILE, "--json"],
    ["inspect", FILE, "-t", "*"],
    ["report", FILE, "-o", "-"],
    ["explain", START],
    ["ops", ANYWHERE],
    [START],
    ["run", FILE, "--random", "--backend", START],
]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_no_command_reaches_the_runner(files: Path, words: list[str]) -> None:
    ended = call(*words, env=CI)
    assert commands(ended) == []
    assert "owned" in ended.out + ended.err or words[-1] == "*"
    if words[0] != "report":
        assert signs(ended.out + ended.err) <= ({"\r"} if "csv" in words else set())
    if "json" in words or "--json" in words:
        assert ended.json["exit_code"] == ended.code
    if words[-1] in ("gitlab", "sarif"):
        assert "##[stop-commands]" in json.dumps(json.loads(ended.out)), "the data are whole"
    if words[-1] == "junit":
        assert "##[stop-commands]" in "".join(ElementTree.fromstring(ended.out).itertext())


def test_with_colours_too(files: Path) -> None:
    for words in (["check", FILE, "zero.onnx", "-v"], ["inspect", FILE, "--nodes"], ["run", FILE, "--random", "-v"]):
        ended = call(*words, env={**CI, "FORCE_COLOR": "1"})
        assert "\x1b[" in ended.out
        assert commands(ended) == []


def test_annotations_are_the_only_commands(files: Path) -> None:
    ended = call("check", "zero.onnx", "-v", "--format", "github", "-o", "github=b.txt", env=CI)
    assert all(re.match(r"::(error|warning|notice) title=qrun QR\d", line) for line in commands(ended))
    assert any("::error title=qrun QR306" in line for line in commands(ended))
    assert not re.search(r"##\w*\[", ended.out)
    assert "\n::error title=qrun QR306" in (files / "b.txt").read_text()


def test_elsewhere_names_stay_as_they_are(files: Path) -> None:
    assert ANYWHERE in call("inspect", FILE, "--nodes").out


def test_a_traceback_is_no_command(files: Path) -> None:
    ended = process("run", f"{START}.onnx", "-vv", "-i", f"x={START}", env=CI)
    assert "Traceback" in ended.err
    assert commands(ended) == []


def test_no_cell_of_a_csv_is_a_formula(files: Path) -> None:
    ended = call("profile", FILE, "--random", "-n", "5", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [row["name"][0] for row in rows] == [" ", "n", "'", "'", "'"]
    assert rows[2]["name"] == f"'{NODES[2]}"
    assert rows[3]["name"] == "'@sum\\t+1"
    assert rows[4]["name"] == "'-1+\\u202ecmd\\r::debug::"
    for row in rows:
        texts = [text for text in row.values() if not re.fullmatch(r"[-+]?(inf|nan|[\d.e+-]+)?", text)]
        assert not any(text.startswith(("=", "+", "-", "@", "\t", "\r")) for text in texts), row


def test_no_cell_of_markdown_begins_a_formula_or_a_list() -> None:
    from qrun.report.markdown import cell

    assert [cell(text) for text in ("=1+1", "+1 a", "- a", "@x", "-", "-0.5", "a\u202eb\nc")] == [
        "\\=1+1", "\\+1 a", "\\- a", "&#64;x", "-", "-0.5", "a\\\\u202eb\\\\nc",
    ]  # fmt: skip


def test_reports_for_viewers_show_marks_as_escapes(files: Path) -> None:
    names = ["a.xml", "a.sarif", "gitlab=a.json"]
    call("check", FILE, "zero.onnx", "-v", *[word for name in names for word in ("-o", name)])
    xml = (files / "a.xml").read_text()
    assert "\u202e" not in xml
    assert "\\u202e" in xml
    (results,) = [run["results"] for run in json.loads((files / "a.sarif").read_text())["runs"]]
    shown = [r["message"]["text"] for r in results]
    shown += [issue["description"] for issue in json.loads((files / "a.json").read_text())]
    assert shown
    assert signs("".join(shown)) == set()
