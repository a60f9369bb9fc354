"""qrun eval --tokens: what it reports of language models equals plain numpy, and it says what does not fit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import Ended, call, fixes, says, value
from helpers.decoders import FORMS, _decoder, expected, model, run_by_hand
from helpers.models import make_model
from onnx import TensorProto, helper

import qrun

CONTEXT, STEP, TOKENS = 24, 8, 250


@pytest.fixture(scope="module")
def corpus() -> Any:
    return _decoder.train().corpus[:TOKENS]


@pytest.fixture
def files(own_folder: Path, corpus: Any) -> Path:
    """f32.onnx and int4.onnx without caches, cached.onnx, and text.npy."""
    for name, form in {"f32": (32, ""), "int4": (4, ""), "cached": (4, "concat")}.items():
        Path(f"{name}.onnx").write_bytes(model(*form))
    np.save("text.npy", corpus)
    return own_folder


def windows(text: Any) -> list[Any]:
    return [text[start : start + CONTEXT] for start in range(0, len(text), CONTEXT)]


def scores(found: dict[str, Any], place: int = 0) -> dict[str, float]:
    return {each["metric"]: each["value"] for each in found["models"][place]["scores"]}


def evaluated(*options: str | Path) -> dict[str, Any]:
    ended = call("eval", *options, "--json", "-j", "1")
    assert ended.code == 0, ended.err
    return ended.json


@pytest.mark.parametrize(("bits", "cache"), FORMS)
def test_every_form_scores_as_numpy_does_to_the_last_digit(files: Path, corpus: Any, bits: int, cache: str) -> None:
    Path("m.onnx").write_bytes(data := model(bits, cache))
    options = ["--context", str(CONTEXT), "--step", str(STEP)]
    found = evaluated("m.onnx", "--tokens", "text.npy", "--against", "f32.onnx", *options)
    texts = windows(corpus)
    logits, reference = ([run_by_hand(each, text, STEP) for text in texts] for each in (data, model(32, "")))
    want = expected(logits, reference, texts)
    assert scores(found) == {name: want[name] for name in ("next_token", "kl_mean", "kl_p99", "perplexity")}
    assert scores(found, 1) == {"perplexity": expected(reference, None, texts)["perplexity"]}
    positions = found["models"][0]["positions"]
    assert [each["position"] for each in positions] == list(range(CONTEXT - 1))
    assert [each["tokens"] for each in positions] == [11] * 9 + [10] * 14
    for name in ("nll", "kl", "agreement"):
        assert [each[name] for each in positions] == want[name]
    assert (found["samples"], found["tokens"]) == (11, TOKENS - 11)
    (difference,) = found["models"][0]["differences"]
    assert difference["value"] == scores(found)["perplexity"] - scores(found, 1)["perplexity"]


def test_the_float_form_is_the_trained_network(files: Path, corpus: Any) -> None:
    """Its own forward pass, in numpy's float32: other last bits, the same printed digits."""
    found = scores(evaluated("f32.onnx", "--tokens", "text.npy", "--context", str(CONTEXT)))
    texts = windows(corpus)
    logits = [_decoder.forward(_decoder.train().weights, text[None])[0][0] for text in texts]
    assert f"{found['perplexity']:.5g}" == f"{expected(logits, None, texts)['perplexity']:.5g}"
    assert found["perplexity"] < 0.6 * len(_decoder.train().characters)


@pytest.mark.parametrize("cache", ["concat", "group"])
def test_steps_and_caches_leave_every_digit_of_a_float_model(files: Path, cache: str) -> None:
    Path("m.onnx").write_bytes(model(32, cache))
    found = [
        scores(
            evaluated(
                "m.onnx", "--tokens", "text.npy", "--context", str(CONTEXT), "--step", step, "--against", "f32.onnx"
            )
        )
        for step in ("1", "7", "64")
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["next_token"] == 1
    assert found[0]["kl_p99"] < 1e-11


def test_onnxruntime_as_the_reference(files: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = evaluated(
        "cached.onnx", "--tokens", "text.npy", "--against", "ort", "--context", str(CONTEXT), "--step", "5"
    )
    assert scores(found)["next_token"] == 1
    assert scores(found)["kl_p99"] < 1e-9
    assert abs(scores(found, 1)["perplexity"] / scores(found)["perplexity"] - 1) < 1e-5


def test_rows_are_sequences(files: Path, corpus: Any) -> None:
    np.save("rows.npy", rows := corpus[:240].reshape(-1, CONTEXT).astype(np.uint16))
    one, other = (
        evaluated("int4.onnx", "--against", "f32.onnx", *more)
        for more in (["--tokens", "rows.npy"], ["--tokens", "text.npy", "--context", str(CONTEXT), "--limit", "10"])
    )
    for found in (one, other):
        for name in ("source", "seconds", "samples_per_second", "seconds_per_sample", "command", "stopped"):
            found.pop(name)
    assert one == other
    found = qrun.evaluate("int4.onnx", tokens=rows, against="f32.onnx")
    assert found.score(0, "next_token") == found.agreement(0)
    assert {each.metric: each.value for each in found.models[0].scores} == scores(one)
    assert len(found.models[0].positions) == CONTEXT - 1


def test_intervals_are_bootstraps_over_sequences(files: Path, corpus: Any) -> None:
    found = evaluated("f32.onnx", "--tokens", "text.npy", "--context", str(CONTEXT))
    (score,) = found["models"][0]["scores"]
    data = model(32, "")
    sums = []
    for text in windows(corpus):
        want = expected([run_by_hand(data, text, STEP)], None, [text])
        sums.append([np.log(want["perplexity"]) * (len(text) - 1), len(text) - 1])
    rows, random = np.array(sums), np.random.default_rng(1)
    drawn = rows[random.integers(0, len(rows), (4000, len(rows)))].sum(axis=1)
    low, high = np.percentile(np.exp(drawn[:, 0] / drawn[:, 1]), (2.5, 97.5))
    assert score["low"] == pytest.approx(low, rel=0.02)
    assert score["high"] == pytest.approx(high, rel=0.02)
    (alone,) = evaluated("f32.onnx", "--tokens", "text.npy", "--context", "64", "--limit", "1")["models"][0]["scores"]
    assert (alone["low"], alone["high"], alone["count"]) == (None, None, 63)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_call_is_continued(files: Path, corpus: Any, jobs: str) -> None:
    np.save("long.npy", np.resize(corpus, 20_000))
    options = ["cached.onnx", "--tokens", "long.npy", "--against", "f32.onnx", "--context", "32", "--step", "8"]
    undisturbed = evaluated(*options, "-o", "undisturbed")
    command = [sys.executable, "-m", "qrun", "eval", *options, "-o", "out", "-j", jobs]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    for _ in range(6000):
        if len(list(Path("out").glob("chunk-*.npz"))) >= 3 or running.poll() is not None:
            break
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    found = evaluated(*options, "-o", "out", "--resume")
    assert contents(Path("out")) == contents(Path("undisturbed"))
    assert found["models"] == undisturbed["models"]
    assert found["resumed"] > 0
    ended = call("eval", *options[:-1], "4", "-o", "out", "--resume")
    says(ended, 2, "step differs")
    says(call("eval", *options[:-3], "16", *options[-2:], "-o", "out", "--resume"), 2, "samples differs")


def test_gates_and_the_screen(files: Path) -> None:
    options = ["int4.onnx", "--tokens", "text.npy", "--against", "f32.onnx", "--context", str(CONTEXT)]
    ended = call("eval", *options)
    found = scores(evaluated(*options))
    first = ended.out.splitlines()[0]
    assert first.startswith(f"next-token agreement with f32.onnx: int4.onnx {100 * found['next_token']:.2f} %; KL ")
    assert f"perplexity {found['perplexity']:.4g} instead of" in first
    assert "11 sequences, 239 predicted tokens of text.npy; against f32.onnx" in ended.out
    assert "\nint4.onnx along the sequences\n  positions  tokens  perplexity" in ended.out
    assert "f32.onnx along" not in ended.out
    assert call("eval", *options, "--min-agreement", "50").code == 0
    assert call("eval", *options, "--min-agreement", "99.9").code == 1
    assert f" {found['perplexity']:.4g} (" in call("eval", *options, "--format", "markdown").out
    assert f",{found['perplexity']!r}," in call("eval", *options, "--format", "csv").out


def test_a_page_of_it(files: Path) -> None:
    Path("e.json").write_text(call("eval", "int4.onnx", "--tokens", "text.npy", "--context", "24", "--json").out)
    assert call("report", "e.json", "-o", "e.html").code == 0
    assert "perplexity" in Path("e.html").read_text()


def bad_tokens(array: Any, *words: str, model: str = "f32.onnx", options: tuple[str, ...] = ()) -> None:
    np.save("bad.npy", array)
    ended = call("eval", model, "--tokens", "bad.npy", *options)
    says(ended, 2, "bad.npy", *words)
    assert "fix: " in ended.err


def test_files_that_hold_no_tokens(files: Path) -> None:
    words = len(_decoder.train().characters)
    bad_tokens(
        np.array([1, 2, words]),
        "QR003",
        f"expected 0 to {words - 1}, the vocabulary of f32.onnx",
        f"got      {words} at [2]",
    )
    bad_tokens(np.array([[1, 2], [3, -1]]), "got      -1 at [1,1]")
    bad_tokens(np.array([1, 2**63], np.uint64), f"got      {2**63} at [1]")
    bad_tokens(np.array([1.0, 2.0]), "QR007", "got      float64 [2]", "tokens.astype(np.int64)")
    bad_tokens(np.array([True, False]), "bool [2]")
    bad_tokens(np.array(["a", "b"]), "as a tokenizer gives them")
    bad_tokens(np.zeros((0, 8), np.int64), "got      int64 [0,8]", "2 tokens or more")
    bad_tokens(np.array([1]), "2 tokens or more")
    bad_tokens(np.zeros((1, 2, 2), np.int64), "two axes", "int64 [1,2,2]")
    bad_tokens(np.array(3), "one number")
    bad_tokens(np.zeros((2, 8), np.int64), "--context is for a text of one axis", options=("--context", "4"))
    Path("bad.txt").write_text("1 2 3")
    assert call("eval", "f32.onnx", "--tokens", "bad.txt").code == 2
    assert call("eval", "f32.onnx", "--tokens", "missing.npy").code == 2


def test_options_that_mean_nothing_with_tokens(files: Path) -> None:
    wrong = [
        ["-i", "text.npy"],
        ["--labels", "text.npy"],
        ["--metric", "a:b"],
        ["--health"],
        ["--batch", "2"],
        ["--cast"],
    ]
    for options in wrong:
        fix = fixes(call("eval", "f32.onnx", "--tokens", "text.npy", *options), 2, "QR005")
        assert fix == [f"omit {options[0].replace('-i', '--inputs') if options[0] == '-i' else options[0]}"]
    says(call("eval", "f32.onnx", "-i", "text.npy", "--step", "3"), 2, "--step goes with --tokens FILE")
    ended = says(call("eval", "f32.onnx"), 2, "QR001", "-i FOLDER", "--tokens FILE")
    assert len(ended.err.splitlines()) < 6


def simple(inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    """A model that adds its inputs, whatever they are; it only has a form."""
    nodes = [helper.make_node("Cast", [inputs[0].name], [outputs[0].name], to=outputs[0].type.tensor_type.elem_type)]
    nodes += [helper.make_node("Identity", [inputs[-1].name], [each.name]) for each in outputs[1:]]
    return make_model(nodes, inputs, outputs)


IDS = value("input_ids", TensorProto.INT64, ["batch", "seq"])
LOGITS = value("logits", TensorProto.FLOAT, ["batch", "seq", 9])
CACHE = value("past.0.key", TensorProto.FLOAT, ["batch", 2, "past", 4])


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([value("x", TensorProto.FLOAT, ["N", 4])], [LOGITS], ["no input takes tokens", "got      x float32 [N,4]"]),
        (
            [value("input_ids", TensorProto.INT64, [2, "seq"])],
            [LOGITS],
            ["'input_ids' takes no tokens", "int64 [2,seq]"],
        ),
        ([IDS], [value("y", TensorProto.FLOAT, ["N", 4])], ["no output holds logits", "got      y float32 [N,4]"]),
        (
            [IDS, value("token_type_ids", TensorProto.INT64, ["b", "s"])],
            [LOGITS],
            ["'token_type_ids' is none that qrun"],
        ),
        ([IDS, CACHE], [LOGITS], ["'past.0.key' is a cache without an output", "present.0.key"]),
        (
            [IDS, value("past.0.key", TensorProto.FLOAT, ["b", 2, 64, 4])],
            [LOGITS, value("present.0.key", TensorProto.FLOAT, ["b", 2, 64, 4])],
            ["a cache of another form", "[batch,heads,tokens,size]", "float32 [b,2,64,4]"],
        ),
        (
            [IDS, value("attention_mask", TensorProto.FLOAT, [1, 1, 4, 4])],
            [LOGITS],
            ["'attention_mask' has another form"],
        ),
    ],
)
def test_models_that_are_no_decoders(files: Path, inputs: Any, outputs: Any, words: list[str]) -> None:
    onnx.save(simple(inputs, outputs), "m.onnx")
    ended = says(call("eval", "m.onnx", "--tokens", "text.npy"), 2, "QR003 no-decoder", "m.onnx is no decoder", *words)
    assert "genai_config.json" in ended.err


def test_only_the_last_logits(files: Path) -> None:
    """As onnxruntime-genai can export a decoder."""
    nodes = [helper.make_node("Gather", ["table", "last"], ["logits"])]
    nodes.insert(0, helper.make_node("Slice", ["input_ids", "start", "end", "axis"], ["last"]))
    constants = {
        "table": np.eye(9, dtype=np.float32),
        "start": np.array([-1]),
        "end": np.array([99]),
        "axis": np.array([1]),
    }
    onnx.save(make_model(nodes, [IDS], [value("logits", TensorProto.FLOAT, ["b", "s", 9])], constants), "m.onnx")
    np.save("few.npy", np.arange(8))
    ended = call("eval", "m.onnx", "--tokens", "few.npy")
    assert ended.code == 1
    assert "does not hold the logits of every token" in ended.out


def test_vocabularies_of_two_sizes(files: Path) -> None:
    for words in (9, 12):
        nodes = [helper.make_node("Gather", ["table", "input_ids"], ["logits"])]
        output = value("logits", TensorProto.FLOAT, ["b", "s", None])
        onnx.save(make_model(nodes, [IDS], [output], {"table": np.eye(words, dtype=np.float32)}), f"{words}.onnx")
    np.save("few.npy", np.arange(9))
    says(
        call("eval", "9.onnx", "--tokens", "few.npy", "--against", "12.onnx"),
        2,
        "different vocabularies",
        "12 tokens",
        "9 tokens",
    )
    assert call("eval", "9.onnx", "--tokens", "few.npy").code == 0


def test_a_model_of_a_fixed_length(files: Path) -> None:
    """Windows are as long as its runs; what is left over does not count."""
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["logits"])]
    ids, table = value("input_ids", TensorProto.INT64, [1, 6]), np.eye(76, dtype=np.float32)
    onnx.save(make_model(nodes, [ids], [value("logits", TensorProto.FLOAT, [1, 6, 76])], {"table": table}), "m.onnx")
    found = evaluated("m.onnx", "--tokens", "text.npy")
    assert (found["samples"], found["tokens"]) == (TOKENS // 6, TOKENS // 6 * 5)
    says(call("eval", "m.onnx", "--tokens", "text.npy", "--context", "8"), 2, "expected 6 tokens", "fix: --context 6")


def test_logits_that_are_not_numbers_are_seen(files: Path) -> None:
    table = np.eye(76, dtype=np.float32)
    table[5] = np.nan
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["logits"])]
    onnx.save(
        make_model(nodes, [IDS], [value("logits", TensorProto.FLOAT, ["b", "s", 76])], {"table": table}), "m.onnx"
    )
    np.save("few.npy", np.array([[1, 2, 3], [4, 5, 6], [1, 2, 3]]))
    found = evaluated("m.onnx", "--tokens", "few.npy")
    assert found["models"][0]["scores"][0]["value"] == "nan"
    assert found["models"][0]["scores"][0]["low"] is None


def genai(config: object) -> Ended:
    Path("g").mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    Path("g", "genai_config.json").write_text(text)
    return call("eval", "g", "--tokens", "text.npy", "--context", str(CONTEXT))


def test_a_folder_of_onnxruntime_genai(files: Path) -> None:
    """It is the model that its description names; the names of inputs and outputs come from there."""
    proto = onnx.load_from_string(model(4, "group"))
    renamed = {
        "input_ids": "tokens",
        "logits": "scores",
        "past_key_values.0.key": "k_0",
        "past_key_values.0.value": "v_0",
    }
    renamed |= {"present.0.key": "k_0_out", "present.0.value": "v_0_out"}
    for node in proto.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for each in (*proto.graph.input, *proto.graph.output):
        each.name = renamed.get(each.name, each.name)
    config = _decoder.config()
    config["model"]["decoder"]["inputs"] |= {
        "input_ids": "tokens",
        "past_key_names": "k_%d",
        "past_value_names": "v_%d",
    }
    outputs = {"logits": "scores", "present_key_names": "k_%d_out", "present_value_names": "v_%d_out"}
    config["model"]["decoder"]["outputs"] = outputs
    Path("g").mkdir()
    onnx.save(proto, "g/model.onnx")
    assert genai(config).code == 0
    Path("group.onnx").write_bytes(model(4, "group"))
    options = ["--tokens", "text.npy", "--context", str(CONTEXT)]
    assert (
        scores(evaluated("g", *options))
        == scores(evaluated("g/model.onnx", *options))
        == scores(evaluated("group.onnx", *options))
    )
    said = evaluated("group.onnx", *options, "--against", "g")
    assert scores(said)["kl_mean"] == 0
    ended = call("eval", "g", "--tokens", "text.npy", "--context", "65")
    says(ended, 2, "at most 64 tokens, the context of g/model.onnx", "fix: --context 64")
    Path("g/model.onnx").rename("g/other.onnx")
    says(genai(config), 2, "QR004", "cannot read 'g/model.onnx'", "other.onnx")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", ["expected JSON"]),
        ("[" * 100_000, ["expected JSON"]),
        ("\x00\xff", ["expected JSON"]),
        ("[1]", ["expected model: an object"]),
        ({"model": 3}, ["expected model: an object", "got      3"]),
        ({"model": {}}, ["expected model.decoder: an object", "got      nothing"]),
        ({"model": {"decoder": {}}}, ["model.decoder.filename", "got      nothing"]),
        ({"model": {"decoder": {"filename": ["m"]}}}, ["the name of an .onnx file"]),
        ({"model": {"decoder": {"filename": "../f32.onnx"}}}, ["a file in this folder"]),
        ({"model": {"decoder": {"filename": "/etc/passwd"}}}, ["a file in this folder"]),
        ({"model": {"decoder": {"filename": "a\0b"}}}, ["the name of an .onnx file"]),
        ({"model": {"decoder": {"filename": "m", "inputs": 1}}}, ["model.decoder.inputs: an object"]),
        (
            {"model": {"decoder": {"filename": "m", "inputs": {"input_ids": 1}}}},
            ["model.decoder.inputs.input_ids: a name"],
        ),
        ({"model": {"decoder": {"filename": "m", "inputs": {"past_names": "%s"}}}}, ["with one %d"]),
        ({"model": {"decoder": {"filename": "m"}, "vocab_size": -1}}, ["model.vocab_size: a whole number above 0"]),
        ({"model": {"decoder": {"filename": "m"}, "context_length": True}}, ["model.context_length"]),
        (" " * (1 << 20) + "{}", ["at most 1,048,576 bytes"]),
    ],
    ids=range(17),
)
def test_descriptions_that_are_damaged(files: Path, config: Any, words: list[str]) -> None:
    ended = says(genai(config), 3, "QR101", "genai_config.json' does not describe a decoder", *words)
    assert len(ended.err) < 1500
    assert says(call("run", "g"), 3, "QR101")


def test_a_link_out_of_the_folder_is_refused(files: Path) -> None:
    Path("g").mkdir()
    Path("g/model.onnx").symlink_to(files / "f32.onnx")
    says(genai(_decoder.config()), 3, "a file in this folder")
