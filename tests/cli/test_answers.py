"""Every JSON document says what the screen says, what the exit code means, and what to type next; its schema is
shipped."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from helpers.cli import Ended, call, conv_model, npy, quantize_model, save

from qrun.cli._base import COMMANDS
from qrun.report.answer import EXITS
from qrun.report.codes import TOPICS

CALLS = {
    "run": "q.onnx -i bad.npy",
    "check": "check q.onnx",
    "profile": "profile m.onnx -n 2",
    "compare": "compare m.onnx",
    "eval": "eval m.onnx -i x.npy --against ort",
    "conform": "conform --runtime native --select known/qlinearmul-o18",
    "probe": "probe --runtime ort --form matmul",
    "convert": "convert m.onnx -o n.onnx --to qdq",
    "export": "export m.onnx -o layers --as raw",
    "inspect": "inspect m.onnx --nodes -t *",
    "cache": "cache",
    "ops": "ops QLinear",
    "explain": "explain QR301",
}
"""A call of each command that prints JSON."""
WITHOUT = {"report": "writes a page", "completion": "prints a script"}
SCREENS = [name for name in CALLS if name not in ("run", "profile", "eval", "inspect", "export")]
"""Commands whose screen has the sentence word for word, and no time of this run in it."""


@pytest.fixture(autouse=True)
def models(folder: Path) -> None:
    save(conv_model(), folder / "m.onnx")
    save(quantize_model(), folder / "q.onnx")
    npy(folder / "x.npy", np.zeros((2, 3, 8, 8), np.uint8))
    npy(folder / "bad.npy", np.float32([np.nan, 1, np.inf]))


def valid(command: str, ended: Ended) -> dict[str, Any]:
    schema = json.loads(files("qrun").joinpath(f"schemas/{command}-1.0.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(ended.json, schema)
    return ended.json


def test_every_command_is_here() -> None:
    assert {*CALLS, *WITHOUT} == set(COMMANDS)


@pytest.mark.parametrize("command", CALLS)
def test_an_answer(command: str) -> None:
    found = valid(command, ended := call(*shlex.split(CALLS[command]), "--json"))
    assert found["verdict"].strip(), ended.err
    assert "\n" not in found["verdict"]
    assert found["exit"] == {"code": ended.code, "meaning": EXITS[ended.code]}
    assert found["exit_code"] == ended.code
    assert all(text.startswith(("qrun ", "netron ")) for text in found["next"])


@pytest.mark.parametrize("command", SCREENS)
def test_the_sentence_is_that_of_the_screen(command: str) -> None:
    words = shlex.split(CALLS[command])
    told, screen = call(*words, "--json").json, call(*words).out
    sentence = told["verdict"].partition(", in ")[0]  # conform: then the time that it took
    assert sentence in " ".join(screen.split("\n"))
    assert all(text in screen for text in told["next"])


def test_a_run_names_its_outputs_its_time_and_the_command_that_explains_the_first_finding() -> None:
    found = valid("run", call(*shlex.split(CALLS["run"]), "--json"))
    assert found["verdict"].startswith("q.onnx: q uint8 [3], ")
    assert found["next"] == ["qrun explain QR401"]
    assert "qrun explain QR401" in call(*shlex.split(CALLS["run"])).out


def test_options_are_added_to_this_call(folder: Path) -> None:
    """The screen says: next  --isolate --lsb 0 compares each node on its own."""
    from qrun.report.answer import Answer
    from qrun.report.sheet import Block, Sheet

    facts = [("next", "--isolate --rtol 0 --atol 0 compares each node on its own and shows details of this one")]
    answer = Sheet([Block("first", facts=facts)], "differ: x").answer(1)
    assert answer.fields(["compare", "my m.onnx"])["next"] == ["qrun compare 'my m.onnx' --isolate --rtol 0 --atol 0"]
    assert Answer(0, "equal").fields(["compare", "m.onnx"])["next"] == []


def test_the_best_of_several_models_is_compared_again_with_the_same_inputs() -> None:
    for name in ("a b.onnx", "c.onnx"):
        save(conv_model(), Path(name))
    words = ["compare", "m.onnx", "a b.onnx", "c.onnx", "-i", "x.npy", "--min-sqnr", "20"]
    (found,) = valid("compare", call(*words, "--json"))["next"]
    assert found == "qrun compare m.onnx 'a b.onnx' -i x.npy --min-sqnr 20 --json"
    assert call(*shlex.split(found)[1:]).code == 0
    assert found.removesuffix(" --json") in call(*words).out


@pytest.mark.parametrize("command", CALLS)
def test_a_failure_says_how_to_mend_it(command: str) -> None:
    found = valid(command, ended := call(command, "--no-such-option", "--json"))
    assert ended.code == found["exit"]["code"] == 2
    assert found["exit"]["meaning"] == EXITS[2]
    assert found["verdict"] == f"error QR000 {found['error']['name']}: {found['error']['message']}"
    assert found["verdict"] in ended.err
    assert found["next"] == found["error"]["fixes"]
    assert found["next"][-1] == f"qrun {command} -h"


def test_the_table_of_exit_codes_has_the_same_words() -> None:
    text = " ".join(TOPICS["exit-codes"].split())
    assert all(f"{code} {meaning}" in text for code, meaning in EXITS.items())
