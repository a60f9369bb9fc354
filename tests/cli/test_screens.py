"""What reaches eyes: widths, colours, encodings and odd names, on terminals and off them."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import ESCAPE, call, conv_model, deep_model, npy, save, sum_model, terminal
from helpers.models import make_model, typed
from onnx import TensorProto, helper

from qrun.report.progress import Progress, ProgressLine
from qrun.report.screen import Out, Screen
from qrun.report.text import bar
from qrun.running.profiling import Profile, brief


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(deep_model(), folder / "deep.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("command", ["run", "profile"])
def test_terminal_fits(width: int, command: str) -> None:
    more = ["-n", "3"] if command == "profile" else ["-v", "--backend", "reference"]
    shown = ESCAPE.sub("", terminal(command, "deep.onnx", "-i", "x.npy", *more, width=width, only="out"))
    from rich.cells import cell_len

    assert "─" * 40 in shown
    for line in shown.splitlines():
        assert cell_len(line) <= width, line
    rows = [line for line in shown.splitlines() if "Conv_quant" in line]
    assert rows
    assert all(("uint8 [1,3,8,8]" in row) == (command == "run" and width > 80) for row in rows)
    names = [row.split()[1] for row in rows]
    assert len(set(names)) == len(names)
    if width == 80:
        assert "node in /features/" in shown
        assert all(name.startswith("features.") for name in names)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("command", ["run", "profile"])
def test_columns_in_a_pipe(width: int, command: str) -> None:
    more = ["-n", "3"] if command == "profile" else ["-v", "--backend", "reference"]
    shown = call(command, "deep.onnx", "-i", "x.npy", *more, env={"COLUMNS": str(width)}).out
    assert "─" not in shown
    for line in shown.splitlines():
        assert len(line) <= max(width, 60), line


def test_names_on_a_narrow_terminal_stay_distinct() -> None:
    shown = terminal("profile", "deep.onnx", "-i", "x.npy", "-n", "3", width=40, only="out", NO_COLOR="1")
    assert "……" not in shown
    names = [line.split()[1] for line in shown.splitlines() if re.match(r" +\d+  \S.*%$", line)]
    assert len(set(names)) == 10, shown
    assert all(re.fullmatch(r"…\d+/con.*…", name) for name in names)


def test_dumb_terminal_has_no_rules() -> None:
    shown = terminal("deep.onnx", "-i", "x.npy", TERM="dumb")
    assert not re.search("[─\x1b]", shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\r" not in terminal("profile", "deep.onnx", "-n", "150", only="err", TERM="dumb").replace("\n", "")


def test_long_paths_are_shortened_in_the_header(folder: Path) -> None:
    deep = folder.joinpath(*["long-folder-name"] * 6)
    deep.mkdir(parents=True)
    path = str(save(deep_model(2), deep / "m.onnx"))
    first = terminal(path, "-i", "x.npy", only="out", NO_COLOR="1").splitlines()[0]
    assert re.match("/.*/…/.*m.onnx  opset 13", first)
    assert len(first) <= 80
    assert call(path, "-i", "x.npy").out.startswith(f"{path}  opset 13")


def test_one_spelling_of_domains(folder: Path) -> None:
    names = ["image", "x_scale", "x_zp"]
    add = helper.make_node("QLinearAdd", [*names, *names, "x_scale", "x_zp"], ["y"], domain="com.microsoft", name="sum")
    kind = TensorProto.UINT8
    tensors = {"x_scale": np.float32(0.02), "x_zp": np.uint8(128)}
    model = make_model([add], {"image": typed(kind, (2,))}, {"y": typed(kind)}, tensors, 13)
    save(model, folder / "add.onnx")
    shown = call("profile", "add.onnx", "-n", "2").out
    nodes, operators = shown.split("By operator")
    assert re.search(r"sum +QLinearAdd ", nodes)
    assert "com.microsoft::QLinearAdd " in operators
    assert call("profile", "add.onnx", "-n", "2", "--json").json["operators"][0]["op"] == "com.microsoft::QLinearAdd"


def test_a_single_run_has_no_deviation() -> None:
    assert re.search(r"\d ms ± -|\d us ± -", call("profile", "deep.onnx", "-n", "1").out)
    assert call("profile", "deep.onnx", "-n", "1", "--json").json["run"]["sd_ms"] is None


def test_pipe_is_whole() -> None:
    for words in (["-v"], []):
        shown = call("deep.onnx", "-i", "x.npy", *words).out
        assert "\x1b" not in shown
        assert "─" not in shown
        rows = [line for line in shown.splitlines() if "Conv_quant" in line]
        assert all("…" not in line and "/features/features." in line for line in rows)
        assert len(rows) >= 3
    assert len({line.index("QLinearConv") for line in rows}) == 1


def test_colour_rules() -> None:
    words = ("deep.onnx", "-i", "x.npy")

    def coloured(*more: str, **env: str) -> bool:
        return "\x1b[" in call(*words, *more, env=env).out

    assert not coloured()
    assert not coloured("--color", "never", FORCE_COLOR="1")
    assert coloured("--color", "always")
    assert coloured("--color", "always", NO_COLOR="1")
    assert coloured(FORCE_COLOR="1")
    assert not coloured(FORCE_COLOR="1", NO_COLOR="1")
    assert not coloured(NO_COLOR="1")
    assert "\x1b[" in terminal(*words)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        shown = terminal(*words, **env)
        assert "\x1b" not in shown
        assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in terminal(*words, "--color", "never")
    forced = call(*words, "--color", "always").out
    assert ESCAPE.sub("", forced).splitlines()[2:6] == call(*words).out.splitlines()[2:6]


def test_forced_colour_brings_no_cursor_codes() -> None:
    ended = call("profile", "deep.onnx", "-n", "3", env={"FORCE_COLOR": "1"})
    assert "\r" not in ended.err
    assert not re.search(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]", ended.out + ended.err)


def test_progress_only_on_a_terminal() -> None:
    """From the first second on, with a bar as soon as it is known how much there is to do."""
    shown = terminal("profile", "deep.onnx", "-n", "800", "-b", "reference", only="err")
    lines = [line.strip() for line in shown.split("\r") if line.startswith("profile: ")]
    assert any(re.fullmatch(r"profile: [━─]{5,} \d+ of 800 runs, [\d.]+ (min \d+ )?s left", line) for line in lines), (
        lines
    )
    assert max(map(len, lines)) < 80
    assert "runs" not in terminal("profile", "deep.onnx", "-n", "300", "-q", only="err")
    piped = call("profile", "deep.onnx", "-n", "400", "-b", "reference")
    assert "\r" not in piped.err


def test_what_is_written_clears_the_progress_line_first() -> None:
    stream = io.StringIO()
    screen = Screen(stream, terminal=True, width=60, color=False)
    out = Out(screen, screen)
    with ProgressLine(out, "work") as line, Progress(out, "work", "steps") as progress:
        deadline = time.monotonic() + 30
        progress(1, 4, 125.0)
        while not line.shown and time.monotonic() < deadline:
            time.sleep(0.05)
        drawn = stream.getvalue()
        screen.line("a result")
        assert stream.getvalue() == f"{drawn}\r{' ' * line_length(drawn)}\ra result\n"
    assert drawn.split("\r")[1].startswith("work: ━")
    assert drawn.rstrip().endswith(" 1 of 4 steps, 2 min 5 s left")
    assert line_length(drawn) <= 59
    assert screen.stream is stream


def line_length(drawn: str) -> int:
    return len(drawn.split("\r")[-1])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_poor_encodings(folder: Path, encoding: str) -> None:
    save(sum_model(["ünï\N{GRINNING FACE}"], TensorProto.FLOAT, (40,)), folder / "s.onnx")
    for words in (
        ["s.onnx"],
        ["profile", "s.onnx", "-n", "3"],
        ["profile", "s.onnx", "-n", "3", "--format", "markdown"],
    ):
        ended = call(*words, encoding=encoding)
        assert ended.code == 0, ended.err
        if encoding == "ascii":
            assert ended.raw.isascii()
            assert "\\U0001f600" in ended.out + ended.err
    if encoding == "ascii":
        assert "..." in call("s.onnx", encoding=encoding).out
        assert bar(0.5, 8, encoding) == "####"
        assert (
            "\\u"
            not in call("profile", "s.onnx", "-n", "3", "--format", "markdown", encoding=encoding).out.split("mean")[1]
        )


def test_ascii_terminal() -> None:
    shown = terminal("deep.onnx", "-i", "x.npy", PYTHONIOENCODING="ascii")
    assert shown.isascii()
    assert "-" * 40 in shown


NAMES = {
    "close tag": "[/a]", "markup": "model[0]/[bold]x", "emoji code": ":x:", "colon": "input:0", "equals": "a=b",
    "space": " two  words ", "long": "n" * 300, "long path": "/" + "/".join(["part"] * 80), "newline": "a\nb\r\nc",
    "escape": "\x1b[31mred\x1b[2J\x07", "bell and null-like": "\x01\x08\x7f\x9b31m", "bidi": "a\u202eb\u2066c", "emoji": "\N{GRINNING FACE}" * 3,
    "wide": "漢字" * 30, "joiner": "a\u200db\ufeff", "separator": "a\u2028b\u2029c", "combining": "e\u0301" * 5,
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_odd_names_are_shown_safely(folder: Path, kind: str) -> None:
    name = NAMES[kind]
    model = conv_model(name, image=f"{name}.in", output=f"{name}.out")
    save(model, folder / "odd.onnx")
    plain = call("odd.onnx", "-v")
    wide = call("odd.onnx", env={"COLUMNS": "80", "FORCE_COLOR": "1"})
    for ended in (
        plain,
        call("profile", "odd.onnx", "-n", "2"),
        wide,
        call("profile", "odd.onnx", "-n", "2", "--format", "markdown"),
    ):
        assert ended.code == 0, ended.err
        text = ESCAPE.sub("", ended.out + ended.err)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069\u200d\ufeff]", text), (
            kind
        )
    outputs = [line for line in plain.out.splitlines() if "uint8" in line and ".out" in line]
    assert len(outputs) >= 1
    if kind in ("close tag", "markup", "emoji code", "colon", "equals", "long", "long path", "emoji", "wide"):
        assert f"{name}.out" in plain.out
        assert f" {name} " in plain.out
    assert call("odd.onnx", "--json").json["outputs"][0]["name"] == f"{name}.out"
    ended = call("odd.onnx", "-i", f"{name}.i=x.npy", "--json")
    assert ended.code == 2
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", ended.err), kind


@pytest.mark.parametrize("kind", ["markup", "long path", "wide", "escape", "emoji"])
def test_odd_names_on_a_terminal(folder: Path, kind: str) -> None:
    from rich.cells import cell_len

    save(conv_model(NAMES[kind]), folder / "odd.onnx")
    shown = terminal("odd.onnx", NO_COLOR="1", only="out")
    assert "\x1b" not in shown
    assert all(cell_len(line) <= 80 for line in shown.splitlines()), shown


def test_file_name_with_escape_codes(folder: Path) -> None:
    for name in ("\x1b[31mred.onnx", "new\nline.onnx"):
        save(sum_model(), folder / name)
        for ended in (call(name), call(name + ".missing"), call(name, "-i", name)):
            assert not re.search("[\x00-\x09\x0b-\x1f]", ended.out + ended.err)


def test_statistics_and_values(folder: Path) -> None:
    save(sum_model(["x"], TensorProto.FLOAT, (1, None)), folder / "s.onnx")
    npy(folder / "v.npy", np.array([[np.nan, -6.41234, 17.03, np.inf, 0.5]], np.float32))
    out = call("s.onnx", "-i", "v.npy", "-q").out.splitlines()
    assert out[0].split() == ["name", "type", "shape", "min", "max", "mean", "argmax", "NaN/Inf"]
    assert out[1].split() == ["y", "float32", "[1,5]", "-6.412", "inf", "3.706", "3", "1/1"]
    assert out[2].strip() == "y  [nan, -6.412, 17.03, inf, 0.5]"
    npy(folder / "v.npy", np.arange(33, dtype=np.float32)[None])
    assert call("s.onnx", "-i", "v.npy", "-q").out.splitlines()[2].strip() == "y  [0, 1, 2, … 30, 31, 32]"
    npy(folder / "v.npy", np.zeros((1, 0), np.float32))
    out = call("s.onnx", "-i", "v.npy", "-q").out.splitlines()
    assert out[1].split() == ["y", "float32", "[1,0]", "-", "-", "-", "-", "0"]


def steady(session: Any, feeds: Any, first_ns: int) -> Profile:
    """A short profile without the noise of the machine: of one run that profiles, and plain runs a fifth longer."""
    found = brief(session, feeds, first_ns)
    assert found is not None
    nodes = found.node_ns[:, :1]
    return replace(found, node_ns=nodes, run_ns=(int(nodes.sum() * 1.2),) * 3, on_ns=None)


@pytest.mark.parametrize("words", [[], ["-v"]])
def test_times_add_up(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes shown, the others, and the call overhead are a plain run; shares are parts of the nodes."""
    monkeypatch.setattr("qrun.running.profiling.brief", steady)
    out = call("deep.onnx", "-i", "x.npy", *words).out
    head = re.search(r"^(\d[\d.]*) (us|ms) a run  median of 3 plain runs.*; first run ", out, re.M)
    assert head is not None
    table = out[head.end() :].partition("\n\n")[0]
    size = {"us": 1e-3, "ms": 1, "s": 1e3}
    times = [float(value) * size[unit] for value, unit in re.findall(r" (\d[\d.]*) (us|ms|s)(?:  |$)", table, re.M)]
    assert sum(times) == pytest.approx(float(head[1]) * size[head[2]], rel=0.02)
    assert sum(map(float, re.findall(r"([\d.]+) %", table))) == pytest.approx(100, abs=0.5)
    assert ("more nodes" in table) == (not words)
    assert re.search(r"^ +call overhead +\d", table, re.M)


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*given: Any) -> Profile:
        return replace(steady(*given), on_ns=0)

    monkeypatch.setattr("qrun.running.profiling.brief", busy)
    told = "note: the machine is busy, or its clock varies: the calling thread was not running for 100.0 % of the time"
    assert told in " ".join(call("deep.onnx", "-i", "x.npy").out.split())
    (note,) = call("deep.onnx", "-i", "x.npy", "--json").json["notes"]
    assert note.startswith(told.removeprefix("note: "))


def test_argmax_of_rows(folder: Path) -> None:
    save(sum_model(["x"], TensorProto.FLOAT, (None, None)), folder / "s.onnx")
    npy(folder / "v.npy", np.array([[1, 2, 0], [5, 4, 3]], np.float32))
    assert "  1,0 per row  " in call("s.onnx", "-i", "v.npy", "-q").out
    made = call("s.onnx", "-i", "v.npy", "--json").json["outputs"][0]
    assert (made["argmax"], made["argmax_rows"]) == ([1, 0], [1, 0])
    npy(folder / "v.npy", np.eye(6, dtype=np.float32))
    assert "  0,1,2,3,… per row  " in call("s.onnx", "-i", "v.npy", "-q").out
    assert "  0,1,2,3,... per row  " in call("s.onnx", "-i", "v.npy", "-q", encoding="ascii").out


def test_model_without_nodes_or_inputs(folder: Path) -> None:
    save(
        make_model([], {"x": (1,)}, {"x": (1,)}),
        folder / "empty.onnx",
    )
    ended = call("empty.onnx", "-i", "x=[1]")
    assert ended.code == 0, ended.err
    constant = helper.make_node("Constant", [], ["y"], value=onnx.numpy_helper.from_array(np.array([1, 2], np.int64)))
    save(make_model([constant], [], {"y": typed(TensorProto.INT64)}), folder / "constant.onnx")
    ended = call("constant.onnx", "--json")
    assert ended.json["outputs"][0]["values"] == [1, 2]
    assert "random" not in ended.err
    assert call("constant.onnx", "-i", "x.npy").code == 2
    assert call("profile", "constant.onnx", "-n", "2").code == 0


def test_checks_section(folder: Path) -> None:
    save(conv_model(x_scale=np.float32(0)), folder / "zero.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))
    short = call("zero.onnx", "-i", "x.npy", "--backend", "onnx-ref").out
    assert re.search(r"Checks  .*1 (error|warning)", short)
    assert "QR306 error    node 0 /stem/conv: x_scale is 0" in short
    long = call("zero.onnx", "-i", "x.npy", "--backend", "onnx-ref", "-v").out
    assert "  --> zero.onnx  node 0 /stem/conv (QLinearConv-10)" in long
    assert "   =  fix: " in long
    assert "Checks" not in call("zero.onnx", "-i", "x.npy", "--backend", "onnx-ref", "-q").out


def test_what_explain_says_of_an_operator_fits() -> None:
    from qrun.ops import REGISTRY

    for name in sorted({op_type for _, op_type in REGISTRY}):
        shown = call("explain", name, env={"COLUMNS": "80"}).out
        assert all(len(line) <= 80 for line in shown.splitlines()), name
    formulas = call("explain", "LSTM", env={"COLUMNS": "80"}).out
    assert "      x = X @ W^T + (Wb + Rb)\n          for all steps; parentheses" in formulas


def test_models_of_one_folder_are_told_by_what_differs(folder: Path) -> None:
    names = ["quantized_resnet_of_a_long_name", "quantized_mobilenet_of_a_long_name", "r_int4"]
    for name in names:
        path = folder / "models of a zoo with a name of its own" / name / "model.onnx"
        path.parent.mkdir(parents=True)
        save(conv_model(), path)
    shown = call("check", path.parent.parent, "-v", env={"COLUMNS": "80"}).out
    rows = [line.split()[0] for line in shown.splitlines() if line.split()[1:2] == ["1"]]
    assert len(rows) == len(names), shown
    assert "r_int4/model.onnx" in rows
    assert all(any(row.startswith(name[:10]) for row in rows) for name in names), rows
    assert all(row.endswith("/model.onnx") for row in rows), rows


def _tagger() -> onnx.ModelProto:
    """One node without a native kernel: weights of a DynamicQuantizeLSTM with lengths below the longest."""
    weights = {
        "W": np.ones((1, 2, 8), np.int8), "R": np.ones((1, 2, 8), np.int8), "s": np.ones(1, np.float32),
        "z": np.zeros(1, np.int8), "lens": np.array([1, 2], np.int32),
    }  # fmt: skip
    inputs = ["X", "W", "R", "", "lens", "", "", "", "s", "z", "s", "z"]
    domain = "com.microsoft"
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["Y"], "tagger", None, domain, hidden_size=2)
    return make_model([node], {"X": typed(np.float32, [2, 2, 2])}, "Y", weights)


def test_why_the_slowest_node_is_slow(folder: Path) -> None:
    save(_tagger(), folder / "tagger.onnx")
    reason = "sequence_lens has lengths below the batch's: only batches of full lengths are native"
    plain = " ".join(call("tagger.onnx", env={"COLUMNS": "80"}).out.split())
    assert f"node 0 tagger ran on numpy, which is slower: {reason} (see docs/limits.md)" in plain
    shown = call("tagger.onnx", "-v", env={"COLUMNS": "80"}).out
    assert reason in " ".join(shown.split())
    assert "DynamicQuantizeLSTM" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "ran on numpy" not in call("tagger.onnx", "--backend", "reference").out
