"""What ``qrun eval`` says to type next can be typed: it runs, and looks at the sample that it names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call

import qrun

BATCHED = (
    "g (float[N,3] x, int64[N] n) => (float[N,3] y) { c = Cast<to=1>(n) m = %s(c) s = Unsqueeze(m, a) y = Mul(x, s) }"
)
WHOLE = "g (float[3] x, int64[2] n) => (float[3] y) { c = Cast<to=1>(n) m = %s(c) s = ReduceSum<keepdims=0>(m) y = Mul(x, s) }"


def save(text: str, path: str) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "a"))
    onnx.save(model, path)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def samples(how: str, axes: tuple[int, ...]) -> list[str]:
    """Four samples of two inputs; the third is the one that differs most. axes: of n in a sample."""
    x = np.ones((4, 3), np.float32)
    n = np.broadcast_to(np.array([1, 2, -9, -3]).reshape(4, *[1] * len(axes)), (4, *axes)).copy()
    if how == "npz":
        np.savez("both ones.npz", x=x, n=n)
        return ["both ones.npz"]
    if how == "files":
        np.save("it's.npy", x)
        np.save("n.npy", n)
        return ["it's.npy", "n=n.npy"]
    Path("in").mkdir()
    for at in range(4):
        np.save(f"in/x{at}.npy", x[at] if axes else x[at : at + 1])
        np.save(f"in/n{at}.npy", n[at] if axes else n[at : at + 1])
        np.savez(f"in/s{at}.npz", x=np.load(f"in/x{at}.npy"), n=np.load(f"in/n{at}.npy"))
    if how == "folder":
        for path in Path("in").glob("*.npy"):
            path.unlink()
        return ["in"]
    Path("in/list.txt").write_text("".join(f"x=x{at}.npy n=n{at}.npy\n" for at in range(4)))
    return ["in/list.txt"]


def command(shown: str) -> list[str]:
    """The arguments of the command that the report ends with, which may go on in a second line."""
    found = re.search(r" (qrun compare .*?) +shows (?:where|which)", re.sub(r"\n +", " ", shown))
    assert found is not None, shown
    return shlex.split(found[1])[1:]


@pytest.mark.parametrize("how", ["npz", "files", "folder", "list"])
@pytest.mark.parametrize(("text", "axes"), [(BATCHED, ()), (WHOLE, (2,))])
@pytest.mark.parametrize("against", ["float.onnx", "ort"])
def test_the_command_that_eval_tells_runs(how: str, text: str, axes: tuple[int, ...], against: str) -> None:
    save(text % "Identity", "float.onnx")
    save(text % "Abs", "a b.onnx")
    given = [part for spec in samples(how, axes) for part in ("-i", spec)]
    args = ["eval", "a b.onnx", *given, "--against", "float.onnx"]
    shown = call(*args)
    assert shown.code == 0, shown.err
    told = command(shown.out)
    if against == "ort":
        told = ["compare", "a b.onnx", *told[3:], "--against", "ort"]
    ended = call(*told)
    assert ended.code in (0, 1), ended.err
    if against != "ort":
        worst = json.loads(call(*args, "--json").out)["models"][0]["worst"][0]
        assert worst["place"] == 2
        assert json.loads(call(*told, "--json").out)["outputs"][0]["max_abs"] == worst["max_abs"]


def test_going_on_names_the_samples_of_the_earlier_call() -> None:
    save(BATCHED % "Identity", "float.onnx")
    save(BATCHED % "Abs", "int8.onnx")
    (file,) = samples("npz", ())
    args = ["eval", "int8.onnx", "-i", file, "--against", "float.onnx", "-o", "out"]
    first = command(call(*args).out)
    assert command(call(*args, "--resume").out) == first


def test_samples_that_no_command_reads_are_told_without_one() -> None:
    save(BATCHED % "Identity", "float.onnx")
    save(BATCHED % "Abs", "int8.onnx")
    feeds = [{"x": np.ones((1, 3), np.float32), "n": np.array([-1])}]
    (found,) = qrun.evaluate("int8.onnx", feeds, against="float.onnx").models
    assert found.worst[0].inputs == ()
    Path("in").mkdir()
    np.savez("in/s.npz", x=np.ones(3, np.float32), n=np.array([-1]))  # without the batch axis, which eval adds
    shown = call("eval", "int8.onnx", "-i", "in", "--against", "float.onnx").out
    assert "Samples on which" in shown
    assert "qrun compare" not in shown
