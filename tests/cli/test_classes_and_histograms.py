"""``-t`` by the names of nodes, ``--hist``, and ``--classes``."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import call, npy, says
from helpers.models import make_model, typed
from onnx import TensorProto, helper

SCHEMA = json.loads(files("qrun").joinpath("schemas/run-1.0.json").read_text())
NAMES = ["ant", "bee", "cat"]


def valid(document: dict[str, Any]) -> dict[str, Any]:
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.fixture(autouse=True)
def model(folder: Path) -> None:
    """m.onnx returns softmax(scores [N,3]); its quantized tensor is codes, of the node /head/quantize."""
    nodes = [
        helper.make_node("QuantizeLinear", ["scores", "scale", "zero"], ["codes"], "/head/quantize"),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["real"], "/head/dequantize"),
        helper.make_node("Softmax", ["real"], ["p"], "/head/softmax"),
    ]
    stored = {"scale": np.float32(0.5), "zero": np.uint8(10)}
    ends = [{name: typed(TensorProto.FLOAT, ["N", 3])} for name in ("scores", "p")]
    onnx.save(make_model(nodes, *ends, stored, opset=17), folder / "m.onnx")
    scores = np.float32([[1, 3, 2], [1e6, 0, -1e6], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    npy(folder / "x.npy", scores)
    (folder / "labels.txt").write_text("ant\nbee\ncat\n\n")
    (folder / "labels.json").write_text(json.dumps(NAMES))


def outputs(*words: str) -> list[str]:
    ended = call("m.onnx", "-i", "x.npy", *words, "--json")
    assert ended.code == 0, ended.err
    return [each["name"] for each in ended.json["outputs"]]


def test_a_pattern_names_nodes_too() -> None:
    assert outputs("-t", "/head/quantize") == ["p", "codes"]
    assert outputs("-t", "/head/*quantize") == ["p", "codes", "real"]
    assert outputs("-t", "cod*", "-t", "/head/softmax") == ["p", "codes"]
    ended = says(call("m.onnx", "-t", "/head/quantise"), 2, "no tensor or node matches '/head/quantise'")
    assert "did you mean /head/quantize" in ended.err


def test_a_histogram_counts_every_element() -> None:
    found = valid(call("m.onnx", "-i", "x.npy", "-t", "codes", "--hist", "--json").json)["histograms"]
    (codes,) = found
    # codes: 12 16 14, 255 10 0, nine times 10
    assert codes["codes"] == {"low": 0, "high": 255, "used": 6, "at_low": 1 / 15, "at_high": 1 / 15}
    assert (codes["min"], codes["max"], len(codes["bins"])) == (0, 255, 16)
    assert [(b["low"], b["high"]) for b in codes["bins"][:2]] == [(0, 15), (16, 31)]
    assert [b["count"] for b in codes["bins"]] == [13, 1, *[0] * 13, 1]
    (p,) = valid(call("m.onnx", "-i", "x.npy", "--hist", "--json").json)["histograms"]
    assert (p["name"], p["codes"], sum(b["count"] for b in p["bins"])) == ("p", None, 15)
    assert (p["bins"][0]["low"], p["bins"][-1]["high"]) == (p["min"], p["max"])


def test_a_histogram_is_drawn() -> None:
    text = call("m.onnx", "-i", "x.npy", "-t", "codes", "--hist").out
    assert "codes  uint8 [5,3], min 0, max 255, 6 of 256 codes used, 6.7 % at 0, 6.7 % at 255" in text
    table = text.partition("of 256 codes")[2].partition("\n\n")[0].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in table[1:]}
    assert rows["0"] == ["15", "13", "86.7", "%", "█" * 24]
    assert rows["240"][:3] == ["255", "1", "6.7"]
    assert "#" * 24 in call("m.onnx", "-i", "x.npy", "-t", "codes", "--hist", encoding="ascii").out


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        (np.float32([[np.nan, np.inf, -np.inf]]), []),
        (np.float32([[np.nan, 2, 2]]), [(2, 2, 2)]),
        (np.float32([[0, 1, 16]]), [(0, 1, 1), (1, 2, 1), *[(n, n + 1, 0) for n in range(2, 15)], (15, 16, 1)]),
        (np.float32([[3e38, -3e38, 0]]), None),
    ],
)
def test_histograms_of_floats(values: np.ndarray, bins: list[tuple[float, float, int]] | None, folder: Path) -> None:
    npy(folder / "x.npy", values)
    (found,) = call("m.onnx", "-i", "x.npy", "-t", "scores", "--hist", "--json").json["histograms"]
    got = [(b["low"], b["high"], b["count"]) for b in found["bins"]]
    assert sum(count for *_, count in got) + found["nan"] + found["inf"] == 3
    assert bins is None or got == bins


@pytest.mark.parametrize("ends", [(-(2**63), 2**63 - 1), (0, 2**64 - 1), (-1, 1), (0, 16)])
def test_histograms_of_integers_of_any_range(ends: tuple[int, int]) -> None:
    from qrun.report.histogram import histograms

    array = np.array(ends, np.uint64 if ends[1] >= 2**63 else np.int64)
    (found,) = histograms({"x": array})
    assert (found.min, found.max) == ends
    assert [b.count for b in found.bins] == ([1, *[0] * (len(found.bins) - 2), 1])


@pytest.mark.parametrize("file", ["labels.txt", "labels.json"])
def test_the_best_classes_by_name(file: str) -> None:
    (found,) = valid(call("m.onnx", "-i", "x.npy", "--classes", file, "--json").json)["classes"]
    assert (found["output"], found["kind"], len(found["rows"])) == ("p", "probability", 5)
    assert [[each["name"] for each in row] for row in found["rows"][:3]] == [
        ["bee", "cat", "ant"], ["ant", "bee", "cat"], ["ant", "bee", "cat"],
    ]  # fmt: skip
    text = call("m.onnx", "-i", "x.npy", "--classes", file).out.partition("Best classes of p")[2].splitlines()
    assert text[1].split() == ["row", "class", "name", "probability"]
    assert text[2].split()[:3] == ["0", "1", "bee"]
    assert text[3].split()[:2] == ["2", "cat"]
    assert "1 more row" in text[14]
    assert "Best classes of p" in call("m.onnx", "-i", "x.npy", "--classes", file, "-q").out


def test_scores_are_no_probabilities(folder: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(make_model([node], {"x": [3]}, {"y": [3]}), folder / "r.onnx")
    npy(folder / "r.npy", np.float32([4, np.nan, 5]))
    (found,) = valid(call("r.onnx", "-i", "r.npy", "--classes", "labels.txt", "--json").json)["classes"]
    assert (found["kind"], [each["index"] for each in found["rows"][0]]) == ("score", [2, 0, 1])


@pytest.mark.parametrize(
    ("text", "file", "code", "said"),
    [
        ("ant\nbee", "two.txt", "QR003", "no output has a score for each of the 2 classes of two.txt"),
        ("", "none.txt", "QR007", "no names"),
        ('{"0": "ant"}', "map.json", "QR007", "a list of names"),
        ("[", "cut.json", "QR007", "a .json list of names"),
        (None, "labls.txt", "QR004", "did you mean labels.txt?"),
    ],
)
def test_class_names_that_do_not_fit(text: str | None, file: str, code: str, said: str, folder: Path) -> None:
    if text is not None:
        (folder / file).write_text(text)
    ended = call("m.onnx", "-i", "x.npy", "--classes", file, "--json")
    assert (ended.code, ended.json["error"]["code"]) == (2, code)
    assert said in ended.err
