"""Accuracy by class, the pairs that are confused, and folders of images as classes."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import call, npy, says
from helpers.models import make_model
from onnx import helper

import qrun

SCHEMA = json.loads(files("qrun").joinpath("schemas/eval-1.0.json").read_text())
SCORES = np.float32([[9, 1, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9], [0, 9, 0], [np.nan, np.nan, np.nan]])
LABELS = np.array([0, 0, 0, 2, 2, 1])


@pytest.fixture(autouse=True)
def model(own_folder: Path) -> None:
    """m.onnx returns its input, x [N,3]."""
    onnx.save(make_model([helper.make_node("Identity", ["x"], ["y"])], {"x": ["N", 3]}, {"y": ["N", 3]}), "m.onnx")
    npy(own_folder / "x.npy", SCORES)
    npy(own_folder / "labels.npy", LABELS)
    (own_folder / "names.txt").write_text("ant\nbee\ncat")


def test_classes_and_confusions() -> None:
    document = call("eval", "m.onnx", "-i", "x.npy", "--labels", "labels.npy", "--classes", "names.txt", "--json").json
    jsonschema.validate(document, SCHEMA)
    (found,) = document["models"]
    first = {"label": 0, "predicted": 1, "samples": 2, "name": "ant", "predicted_name": "bee"}
    second = {"label": 2, "predicted": 1, "samples": 1, "name": "cat", "predicted_name": "bee"}
    assert found["confused"] == [first, second]
    assert found["classes"] == [
        {"label": 0, "samples": 3, "top1": 1 / 3, "name": "ant", "taken_for": first},
        {"label": 1, "samples": 1, "top1": 0.0, "name": "bee"},
        {"label": 2, "samples": 2, "top1": 0.5, "name": "cat", "taken_for": second},
    ]
    text = call("eval", "m.onnx", "-i", "x.npy", "--labels", "labels.npy").out
    assert [line.split() for line in text.partition("Weakest classes of m.onnx\n")[2].splitlines()[1:5]] == [
        ["1", "1", "0.00", "%", "-"],
        ["0", "3", "33.33", "%", "1", "(2", "samples)"],
        ["2", "2", "50.00", "%", "1", "(1", "sample)"],
        ["Most", "frequent", "mistakes:", "0", "predicted", "as", "1", "(2),", "2", "predicted", "as", "1", "(1)."],
    ]


def test_counts_survive_an_interruption() -> None:
    words = ["eval", "m.onnx", "-i", "x.npy", "--labels", "labels.npy", "-o", "out", "--json"]
    first = call(*words).json["models"]
    assert call(*words, "--resume").json["models"] == first
    assert first[0]["confused"]


def test_folders_are_classes(own_folder: Path) -> None:
    (own_folder / "names.txt").write_text("cat\nant\nbee")
    for name, values in (("cat", SCORES[0]), ("bee", SCORES[3]), ("ant", SCORES[0])):
        (own_folder / "data" / name).mkdir(parents=True)
        npy(own_folder / "data" / name / "0.npy", values)
    words = ["eval", "m.onnx", "-i", "data", "--labels", "folders"]
    says(call(*words), 2, "'ant' is no class number", "--classes FILE")
    (found,) = call(*words, "--classes", "names.txt", "--json").json["models"]
    assert [(each["name"], each["top1"]) for each in found["classes"]] == [("cat", 1), ("ant", 0), ("bee", 1)]
    (own_folder / "names.txt").write_text("ant\nbees\ncat")
    says(call(*words, "--classes", "names.txt"), 2, "'bee' is no class of --classes", "rename the folder to bees")
    says(call("eval", "m.onnx", "-i", "x.npy", "--labels", "folders"), 2, "a folder for each class")


def test_folders_of_images(own_folder: Path) -> None:
    """Images in folders with numbers; how the first was made is printed, and a missing key ends the call at once."""
    image = pytest.importorskip("PIL.Image")
    onnx.save(make_model([helper.make_node("Flatten", ["x"], ["y"])], {"x": ["N", 1, 1, 3]}, {"y": ["N", 3]}), "i.onnx")
    onnx.save(
        make_model(
            [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Mul", ["f", "f"], ["y"])],
            {"x": ["N", 1, 1, 3]},
            {"y": ["N", 3]},
        ),
        "r.onnx",
    )
    for label, brightest in (("0", 0), ("2", 2), ("10", 1), ("1", 1)):
        pixels = np.zeros((1, 3), np.uint8)
        pixels[0, brightest] = 200
        (own_folder / "images" / label).mkdir(parents=True)
        image.fromarray(pixels).save(own_folder / "images" / label / "a.png")
    words = ["eval", "i.onnx", "-i", "images", "--image", "scale=1/255", "layout=nchw"]
    (own_folder / "images" / "10" / "a.png").rename(own_folder / "images" / "1" / "b.png")
    (own_folder / "images" / "10").rmdir()
    document = call(*words, "--labels", "folders", "--json").json
    jsonschema.validate(document, SCHEMA)
    assert [(each["label"], each["samples"], each["top1"]) for each in document["models"][0]["classes"]] == [
        (0, 1, 1), (1, 2, 1), (2, 1, 1),
    ]  # fmt: skip
    (said,) = document["converted"]
    assert said.startswith("x float32 [1,1,1,3] from images/0/a.png: 3x1, ")
    assert said in " ".join(call(*words, "--labels", "folders").out.split())
    says(call("eval", "i.onnx", "-i", "images", "--labels", "folders"), 2, "needs --image with layout, color and scale")
    found = qrun.evaluate("i.onnx", "images", labels="folders", image="scale=1/255 layout=nchw")
    assert found.models[0].scores[0].value == 1
    command = call("eval", "i.onnx", "-i", "images", "--image", "scale=1/255", "layout=nchw", "--against", "r.onnx").out
    words = next(line for line in command.splitlines() if line.startswith("  qrun compare")).partition("   shows")[0]
    assert "--image scale=1/255 layout=nchw" in words
    assert call(*words.split()[1:]).code == 1
    one = call(
        "eval", "i.onnx", "-i", "images/0/a.png", "--image", "scale=1 layout=nchw", "--against", "onnx-ref", "--json"
    ).json
    assert one["samples"] == 1


def test_cast_of_samples(own_folder: Path) -> None:
    npy(own_folder / "wide.npy", SCORES.astype(np.float64))
    words = ["eval", "m.onnx", "-i", "wide.npy", "--labels", "labels.npy"]
    says(call(*words), 2, ", or --cast")
    assert call(*words, "--cast", "--json").json["converted"] == ["x float32 [1,3] from wide.npy[0]: cast from float64"]
