"""--max-time ends a run that takes longer, with the node and the turn that it came to; a run in time is as without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call, save
from helpers.native import ISAS
from helpers.support import assert_equal

import qrun
from qrun.errors import TimeLimitError
from qrun.memory import Deadline

F32 = np.float32
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
X = np.arange(6, dtype=F32).reshape(2, 3)
BACKENDS = ["reference", "native"] if ISAS else ["reference"]
MANY = np.array(2**62)
LOOP = """main (float[2,3] x, int64 n) => (float[2,3] y)
{ r = Relu(x)  y = Loop(n, , r) <body = b (int64 i, bool c, float[2,3] v) => (bool o, float[2,3] u)
    { o = Identity(c)  u = Tanh(v) }> }"""
APART = """main (float[2,3] x, int64 n) => (float[2,3] y)
{ r = Relu(x)  y = Loop(n, , r) <body = b (int64 i, bool c, float[2,3] v) => (bool o, float[2,3] u)
    { o = Identity(c)  z = NonZero(v)  u = Tanh(v) }> }"""
NESTED = """main (float[2,3] x, int64 n) => (float[2,3] y)
{ k = Constant<value = int64 {3}>()
  y = Loop(k, , x) <body = b (int64 i, bool c, float[2,3] v) => (bool o, float[2,3] u)
    { o = Identity(c)
      w = Loop(n, , v) <body = d (int64 j, bool e, float[2,3] p) => (bool q, float[2,3] s)
        { q = Identity(e)  s = Tanh(p) }>
      u = Neg(w) }> }"""
SCAN = """main (float[N] x) => (float[N] y)
{ y = Scan<num_scan_inputs = 1, body = b (float a) => (float s) { s = Neg(a) }>(x) }"""
CHAIN = f"""main (float[2,3] x) => (float[2,3] y)
{{ {"  ".join(f"v{n + 1} = Softmax<axis = {n % 2}>({f'v{n}' if n else 'x'})" for n in range(60))}  y = Neg(v60) }}"""


ENDLESS = LOOP.replace("Loop(n", "Loop(").replace(", int64 n", "")


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def limited(text: str, backend: str, seconds: float) -> qrun.Session:
    """A session that has run a few turns, so that the limit is reached in turns and not before."""
    session = qrun.Session(model(text), backend=backend)
    for _ in range(2):
        session.run({"x": X, "n": np.array(20)})
    session.max_time = seconds
    return session


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", [LOOP, APART])
def test_an_endless_loop_ends(text: str, backend: str) -> None:
    session = limited(text, backend, 0.2)
    for execute in (session.run, session.run, session.execute, session.run_observed):
        start = perf_counter()
        with pytest.raises(TimeLimitError) as caught:
            execute({"x": X, "n": MANY})
        assert 0.2 < perf_counter() - start < 10
        error = caught.value
        assert (error.code, error.name, error.exit_code) == ("QR016", "time-limit", 5)
        assert any("Loop_1" in place for place in error.where)
        facts = dict(error.facts)
        assert int(facts["turn"]) > 1
        assert facts["allowed"] == "0.2 s"
        assert "max_time=1" in str(error)
        assert error.fixes == ("--max-time 1s or none to allow it",)


@pytest.mark.parametrize("backend", BACKENDS)
def test_turns_of_loops_in_loops_are_told(backend: str) -> None:
    with pytest.raises(TimeLimitError) as caught:
        limited(NESTED, backend, 0.2).run({"x": X, "n": MANY})
    turn = dict(caught.value.facts)["turn"]
    inner, _, outer = turn.partition(", in iteration ")
    assert int(inner) >= 1
    assert outer == "1 of the one around it"
    assert caught.value.where[0].endswith("/body")


class Clocked:
    """Deadlines that pass after so many looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        monkeypatch.setattr(Deadline, "passed", property(self._look))

    def _look(self, _: Deadline) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_nodes_are_named_step_by_step_and_in_programs(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want = qrun.Session(model(CHAIN), backend=backend).run({"x": X})["y"]
    session, clock = (
        qrun.Session(model(CHAIN), backend=backend, max_time=1, cache=False, threads=1),
        Clocked(monkeypatch),
    )
    for _ in range(3):
        clock.looks = 10**6
        assert_equal(session.run({"x": X})["y"], want, "in time")
    needed = 10**6 - clock.looks
    assert needed >= 4
    for looks in (0, needed - 1):
        clock.looks = looks
        with pytest.raises(TimeLimitError) as caught:
            session.run({"x": X})
        place = int(caught.value.where[1].split()[1])
        assert place == 0 if looks == 0 else place > 40
    clock.looks = 10**6
    assert_equal(session.run({"x": X})["y"], want, "after it was over")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_observing_run_ends_too(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, clock = qrun.Session(model(CHAIN), backend=backend, max_time=1), Clocked(monkeypatch)
    for _ in range(2):
        clock.looks = 10**6
        session.execute({"x": X})
        clock.looks = 1
        with pytest.raises(TimeLimitError):
            session.execute({"x": X})


@pytest.mark.parametrize("backend", BACKENDS)
def test_scans_tell_their_element(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, clock = qrun.Session(model(SCAN), backend=backend, max_time=1), Clocked(monkeypatch)
    clock.looks = 4
    with pytest.raises(TimeLimitError) as caught:
        session.run({"x": np.zeros(8, F32)})
    assert int(dict(caught.value.facts)["turn"]) in (2, 3)
    clock.looks = 10**6
    assert_equal(session.run({"x": np.ones(8, F32)})["y"], -np.ones(8, F32), "in time")


@pytest.mark.parametrize("wrong", ["1s", -1, float("nan"), [2]])
def test_a_limit_is_a_number(wrong: Any) -> None:
    with pytest.raises(qrun.CallError, match="max_time"):
        qrun.Session(model(LOOP), max_time=wrong)


def test_no_limit_is_no_limit() -> None:
    for limit in (None, float("inf"), 1e12, 3600):
        assert qrun.Session(model(CHAIN), max_time=limit).run({"x": X})["y"].shape == (2, 3)


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    save(model(ENDLESS), tmp_path / "m.onnx")
    np.save("x.npy", X)
    return "m.onnx"


def commands() -> Iterator[list[str]]:
    for backend in (*BACKENDS, "ort"):
        yield ["run", "m.onnx", "--backend", backend]
        yield ["profile", "m.onnx", "--backend", backend]
    for against in ("ort", "reference", "avx2"):
        yield ["compare", "m.onnx", "--against", against]
    yield ["compare", "m.onnx", "--emulate", "avx2"]
    yield ["compare", "m.onnx", "m.onnx"]
    yield ["compare", "m.onnx", "--record", "kept"]
    yield ["report", "m.onnx", "-o", "m.html"]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_ends(words: list[str], endless: str) -> None:
    ended = call(*words, "--random", "--max-time", "0.3s")
    assert "Traceback" not in ended.err
    if "avx2" in words and "--against" in words:
        assert ended.code == 2
        return
    assert (ended.code, "QR016 time-limit" in ended.err) == (5, True), ended.err
    assert "--max-time 1s or none" in ended.err


def test_a_vector_that_takes_longer_is_not_replayed(endless: str, tmp_path: Path) -> None:
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    for name in ("input_0.pb", "output_0.pb"):
        (folder / name).write_bytes(onnx.numpy_helper.from_array(X).SerializeToString())
    for jobs in ("1", "2"):
        ended = call("check", ".", "--max-time", "0.3s", "--jobs", jobs)
        assert "was not replayed: this run takes longer than allowed (QR016)" in ended.out
        assert ended.code == 1


def test_samples_that_take_longer_fail(endless: str) -> None:
    ended = call("eval", "m.onnx", "-i", "x.npy", "-o", "out", "--max-time", "0.3s", "--jobs", "1")
    assert "takes longer than allowed" in ended.out + ended.err
    assert ended.code == 1


def test_the_limit_has_a_default_of_ones_own(endless: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.qrun]\nmax-time = "0.2s"\n')
    ended = call("m.onnx")
    assert ended.code == 5
    assert "max-time from [tool.qrun]" in ended.err
    assert call("m.onnx", "--max-time", "soon").code == 2


def test_how_a_time_is_written(endless: str) -> None:
    for text, seconds in (("50ms", "0.05"), ("5MS", "0.005"), ("0.05s", "0.05"), (".05", "0.05"), ("0.001m", "0.06")):
        assert f"allowed {seconds} s" in call("m.onnx", "--random", "--max-time", text).err
    for text in ("", "ms", "-1", "1sm", "1mm", "1mss", "1us", "inf", "infs", "nanms", "1e400"):
        ended = call("m.onnx", "--random", "--max-time", text)
        assert ended.code == 2
        assert "is not a time such as 500ms, 90s, 10m, 1h or none" in " ".join(ended.err.split())
