"""qrun run of a decoder: the most likely next tokens, and inputs that follow from the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, says, value
from helpers.decoders import _decoder, log_softmax, model, run_by_hand
from helpers.models import make_model
from onnx import TensorProto, helper

IDS = [10, 20, 30, 40, 50]


@pytest.fixture(autouse=True)
def genai(folder: Path) -> Path:
    """plain.onnx without caches, and g/, a folder of onnxruntime-genai without a tokenizer."""
    (folder / "plain.onnx").write_bytes(model(4, ""))
    (folder / "g").mkdir()
    (folder / "g" / "model.onnx").write_bytes(model(4, "group"))
    (folder / "g" / "genai_config.json").write_text(json.dumps(_decoder.config()))
    (folder / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate(letters())}))
    return folder


def letters() -> str:
    return _decoder.train().characters


def best() -> list[tuple[int, float]]:
    """The five most likely tokens after IDS, by plain numpy."""
    shares = np.exp(log_softmax(run_by_hand(model(4, "group"), np.array(IDS), 9)))[-1]
    return [(int(at), float(shares[at])) for at in np.argsort(-shares, kind="stable")[:5]]


def next_tokens(*options: str | Path) -> list[Any]:
    ended = call("run", *options, "--json")
    assert ended.code == 0, ended.err
    found: list[Any] = ended.json.get("next_tokens", [])
    return found


def test_tokens_are_enough(folder: Path) -> None:
    """Caches start empty, the mask is full and positions count from 0."""
    found = next_tokens("g", "-i", f"input_ids={[IDS, IDS[::-1]]}")
    assert len(found) == 2
    assert [each["index"] for each in found[0]] == [at for at, _ in best()]
    assert [each["score"] for each in found[0]] == pytest.approx([share for _, share in best()], rel=1e-12)
    inputs = {each["name"]: each for each in call("run", "g", "-i", f"input_ids={[IDS]}", "--json").json["inputs"]}
    assert {name: (each["shape"], each["source"]) for name, each in inputs.items() if name != "input_ids"} == {
        "attention_mask": ([1, 5], "full"),
        "position_ids": ([1, 5], "0, 1, 2 ..."),
        "past_key_values.0.key": ([1, 2, 0, 16], "empty"),
        "past_key_values.0.value": ([1, 2, 0, 16], "empty"),
    }


def test_caches_that_are_given_count(folder: Path) -> None:
    """The mask and the positions go on behind the tokens in the caches."""
    assert call("run", "g", "-i", f"input_ids={[IDS[:3]]}", "-o", "first.npz").code == 0
    made = np.load("first.npz")
    caches = [f"past_key_values.0.{name}" for name in ("key", "value")]
    for name in caches:
        np.save(f"{name}.npy", made[name.replace("past_key_values", "present")])
    given = [word for name in caches for word in ("-i", f"{name}={name}.npy")]
    found = next_tokens("g", "-i", f"input_ids={[IDS[3:]]}", *given)
    assert [each["index"] for each in found[0]] == [at for at, _ in best()]
    assert [each["score"] for each in found[0]] == pytest.approx([share for _, share in best()], rel=1e-6)
    says(call("run", "g", "-i", f"input_ids={[IDS]}", *given[:2]), 2, "QR001", "past_key_values.0.value")


@pytest.mark.parametrize("names", ["vocab.json", "tokenizer.json", "names.json", "vocab.txt"])
def test_names(folder: Path, names: str) -> None:
    vocabulary = [letter if letter.strip() else "space" for letter in letters()]
    texts = {
        "tokenizer.json": json.dumps({"model": {"vocab": [[word, -1.5] for word in vocabulary[:-1]]}, "added_tokens": [{"id": 75, "content": vocabulary[-1]}]}),
        "names.json": json.dumps(vocabulary),
        "vocab.txt": "\n".join(vocabulary),
    }  # fmt: skip
    if names in texts:
        Path(names).write_text(texts[names])
    else:
        vocabulary = list(letters())
    for given in ("g", "plain.onnx"):
        found = next_tokens(given, "-i", f"input_ids={[IDS]}", "--classes", names)
        assert [each["name"] for each in found[0]] == [vocabulary[at] for at, _ in best()]


def test_a_tokenizer_beside_the_model_names_the_tokens(folder: Path) -> None:
    (folder / "g" / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {x: at for at, x in enumerate(letters())}}})
    )
    ended = call("run", "g", "-i", f"input_ids={[IDS]}")
    (at, share), *_ = best()
    section = ended.out.partition("Most likely next tokens\n")[2].splitlines()
    assert section[0].split() == ["token", "text", "probability"]
    assert section[1].split() == [str(at), json.dumps(letters()[at]), f"{100 * share:.1f}", "%"]
    assert len(section[: section.index("")]) == 6
    (folder / "g" / "tokenizer.json").write_text("{")
    ended = call("run", "g", "-i", f"input_ids={[IDS]}")
    assert ended.code == 0
    assert "note: tokens have no names: cannot read" in ended.err
    assert "Most likely next tokens\n  token  probability\n" in ended.out


def test_names_that_the_terminal_would_obey_are_shown_as_text(folder: Path) -> None:
    Path("bad.json").write_text(json.dumps(["\x1b[2J\n"] * 76))
    ended = call("run", "g", "-i", f"input_ids={[IDS]}", "--classes", "bad.json")
    assert "\x1b" not in ended.out
    assert '"\\u001b[2J\\n"' in ended.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": -1}', ["other JSON"]),
        ('{"a": 99999999999}', ["other JSON"]),
        ('{"a": true}', ["other JSON"]),
        ('{"model": {"vocab": 3}}', ["other JSON"]),
        ("{}", ["no names"]),
        (json.dumps([str(at) for at in range(77)]), ["at most 76 names", "77 names"]),
    ],
)
def test_files_that_are_no_vocabulary(folder: Path, text: str, words: list[str]) -> None:
    Path("bad.json").write_text(text)
    says(call("run", "g", "-i", f"input_ids={[IDS]}", "--classes", "bad.json"), 2, "bad.json", *words)


def test_what_may_be_no_decoder_gets_no_next_tokens(folder: Path) -> None:
    """An encoder that labels each token has the inputs and outputs of a decoder without caches."""
    assert next_tokens("plain.onnx", "-i", f"input_ids={[IDS]}") == []
    assert next_tokens("g") == []  # random tokens
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    x, y = value("x", TensorProto.INT64, ["N", 3]), value("y", TensorProto.FLOAT, ["N", 3])
    onnx.save(make_model(nodes, [x], [y]), "m.onnx")
    Path("names.txt").write_text("a\nb\nc")
    ended = call("run", "m.onnx", "-i", "x=[[1,2,3]]", "--classes", "names.txt")
    assert "Best classes of y" in ended.out
