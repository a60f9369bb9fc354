"""``qrun profile``: its screens, formats and traces, and what it says of onnxruntime."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from importlib.resources import files as resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import Ended, call, deep_model, npy, save
from helpers.models import make_model
from helpers.profile import residual
from onnx import helper

from qrun.checking.rules import RULES
from qrun.native.emit.isa import available
from qrun.running.cpus import usable_cpus

SCHEMA = json.loads(resources("qrun").joinpath("schemas/profile-1.0.json").read_text())
needs_ort = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
needs_native = pytest.mark.skipif(not available(), reason="no native kernels for this machine")
AGAINST = pytest.param(("--against", "ort"), marks=needs_ort, id="against ort")
BACKENDS = [
    pytest.param((), id="native"),
    pytest.param(("-b", "reference"), id="reference"),
    pytest.param(("-b", "ort"), marks=needs_ort, id="ort"),
    AGAINST,
]
ODD = 'a,"b"\n;=1+1 \u00e9[bold]'


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    graph = residual()
    save(graph.proto(), folder / "net.onnx")
    save(residual("unnamed").proto(), folder / "unnamed.onnx")
    save(residual("equal").proto(), folder / "equal.onnx")
    save(deep_model(3), folder / "deep.onnx")
    npy(folder / "x.npy", next(iter(graph.feeds.values())))


def profiled(*words: str, model: str = "net.onnx", **more: Any) -> Ended:
    return call("profile", model, "-i", "x.npy", "-n", "3", *words, **more)


def closed(part: Any) -> Any:
    """The schema with no further keys allowed, so that a key that it does not know is seen."""
    if isinstance(part, dict):
        part = {key: closed(value) for key, value in part.items()}
        if "properties" in part and "type" in part:
            part["additionalProperties"] = False
    if isinstance(part, list):
        part = [closed(item) for item in part]
    return part


@pytest.mark.parametrize("words", [*BACKENDS, ("--threads", "2"), ("--no-cache",), ("-n", "1")])
def test_json_is_as_its_schema_says(words: Sequence[str]) -> None:
    made = profiled(*words, "--json").json
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(made, closed(SCHEMA))
    assert len(made["run"]["samples_ms"]) == (1 if "-n" in words else 3)
    assert all(len(node["samples_ms"]) == len(made["run"]["samples_ms"]) for node in made["nodes"])
    if made["nodes"]:
        spent = sum(node["median_ms"] for node in made["nodes"])
        assert [node["share"] for node in made["nodes"]] == pytest.approx(
            [n["median_ms"] / spent for n in made["nodes"]]
        )
        assert sum(op["share"] for op in made["operators"]) == pytest.approx(1)
        assert len(made["profiled_run"]["samples_ms"]) == len(made["run"]["samples_ms"])
        if made["overhead_ms"]:
            assert spent + made["overhead_ms"] == pytest.approx(made["run"]["median_ms"])
        assert sum(op["nodes"] for op in made["operators"]) == len(made["nodes"])
        assert sum(op["median_ms"] for op in made["operators"]) == pytest.approx(
            sum(node["median_ms"] for node in made["nodes"])
        )


def test_a_failure_is_as_the_schema_says() -> None:
    made = profiled("--random", "--shape", "Q=1", "--json").json
    jsonschema.validate(made, closed(SCHEMA))
    assert "nodes" not in made


@needs_native
def test_nodes_tell_what_they_moved_and_what_ran_them() -> None:
    made = profiled("--json").json
    conv = next(node for node in made["nodes"] if node["op"] == "Conv")
    x, w, y = 8 * 8 * 8, 8 * 8 * 9, 8 * 8 * 8
    assert conv["macs"] == x * 9 * 8
    assert x + w + y < conv["bytes"] < x + w + y + 200, "and scales, zero points"
    assert conv["gmacs"] == pytest.approx(conv["macs"] / conv["median_ms"] / 1e6)
    assert conv["backend"] == "native"
    assert conv["ran_by"].startswith("native ")
    assert len(conv["group"]) > 2
    softmax = next(node for node in made["nodes"] if node["op"] == "Softmax")
    assert softmax["gmacs"] is None
    if softmax["backend"] == "reference":
        assert softmax["why"]
        assert softmax["why"] in profiled("--top", "1").out
    assert made["machine"]["int8"] > 1e6
    least = conv["macs"] / made["machine"]["int8"] * 1e3
    assert conv["roof_share"] * conv["median_ms"] >= least * (1 - 1e-9)
    assert conv["bound"] in ("compute", "memory")
    assert made["prepare_ms"]
    assert made["environment"]["threads_used"] == usable_cpus()


@needs_native
def test_columns_go_where_there_is_no_room() -> None:
    wide, narrow = (profiled(env={"COLUMNS": width}).out for width in ("250", "60"))
    assert all(c in wide for c in ("GMAC/s", "roof", "ran by", "moved", "output", "p90", "native "))
    assert not [line for line in narrow.splitlines() if re.search("median.*moved", line)]
    assert re.search(r"wider terminal or --json: .*\bmoved, output", " ".join(narrow.split()))
    assert "median" in narrow
    assert max(map(len, narrow.splitlines())) <= 60
    shown = profiled(env={"COLUMNS": "80"}).out
    assert re.search(r"\d % (compute|memory)\n", shown)
    assert "roof: share of" in shown
    assert "to prepare, 1 warm-up + 3 plain runs" in shown
    assert "live tensors" in wide


@pytest.mark.parametrize("words", [("--top", "1"), ("--top", "all"), ("--by", "op")])
def test_the_shares_of_the_nodes_add_up(words: Sequence[str]) -> None:
    """Of the nodes shown, and of those that are not."""
    out = profiled(*words, "--format", "markdown").out
    part = re.split(r"^\*\*.*\*\*$", out, flags=re.M)[2]
    head, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in part.splitlines() if row[:1] == "|"]
    shares = [row[head.index("share")] for row in rows]
    assert sum(float(share.rstrip(" %")) for share in shares if share) == pytest.approx(100, abs=1), out


def test_markdown_says_what_it_leaves_out() -> None:
    out = profiled("--top", "1", "--format", "markdown").out
    assert re.search(r"^\| +\| \d+ more nodes \| ", out, re.M)
    assert "\n\\--top all, " in out
    assert "**Slowest nodes**" in out


@needs_native
def test_by_operator_tells_the_kernels() -> None:
    out = profiled("--by", "op").out
    assert "Slowest nodes" not in out
    assert re.search(r"Conv +4 .*native", out)
    assert "ran by" not in profiled("--top", "1", env={"COLUMNS": "80"}).out.partition("By operator")[2]


@pytest.mark.parametrize("words", BACKENDS)
def test_csv_has_a_record_per_node(words: Sequence[str]) -> None:
    ended = profiled(*words, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ended.raw.decode(), newline="")))
    made = profiled(*words, "--json").json
    if "--against" in words:
        assert [row["nodes"] for row in rows] == [" ".join(map(str, g["nodes"])) for g in made["against"]["groups"]]
        return
    assert [(row["name"], int(row["index"])) for row in rows] == [(n["name"], n["index"]) for n in made["nodes"]]
    assert float(rows[-1]["sum"]) == pytest.approx(sum(float(row["share"]) for row in rows))
    assert float(rows[-1]["sum"]) <= 1 + 1e-9
    assert all(float(row["median_ms"]) >= 0 and int(row["bytes"]) > 0 for row in rows)
    assert ended.raw.count(b"\r\n") == ended.raw.count(b"\n") == len(rows) + 1
    by_op = profiled(*words, "--format", "csv", "--by", "op").raw.decode()
    records = list(csv.DictReader(io.StringIO(by_op, newline="")))
    assert len(records) == len(made["operators"])
    kernels = {row["op"]: json.loads(row["ran_by"]) for row in records}
    assert kernels == {op["op"]: op["ran_by"] for op in made["operators"]}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_csv_quotes_what_names_contain(folder: Path, encoding: str) -> None:
    model = deep_model(1)
    model.graph.node[0].name = ODD
    save(model, folder / "odd.onnx")
    npy(folder / "u.npy", np.zeros((1, 3, 8, 8), np.uint8))
    ended = call("profile", "odd.onnx", "-i", "u.npy", "-n", "1", "--format", "csv", encoding=encoding)
    (row,) = csv.DictReader(io.StringIO(ended.raw.decode(encoding), newline=""))
    name = ODD.replace("\n", "\\n")
    assert row["name"] == (name if encoding == "utf-8" else name.replace("\u00e9", "\\xe9"))


@pytest.mark.parametrize("model", ["unnamed.onnx", "equal.onnx"])
def test_nodes_without_names_of_their_own(model: str) -> None:
    made = profiled("--json", model=model).json
    assert len({node["index"] for node in made["nodes"]}) == len(made["nodes"]) > 5
    assert profiled("--top", "all", model=model).code == 0


@needs_ort
def test_onnxruntime_on_the_nodes_of_the_model() -> None:
    made = profiled("-b", "ort", "--json").json
    convs = [node for node in made["nodes"] if node["op"] == "Conv" and not node["inserted"]]
    assert len(convs) == 4
    assert all(node["name"].startswith("/net/conv_") and node["backend"] == "ort" for node in convs)
    assert all("Conv" in node["ran_by"] for node in convs)
    assert any(node["macs"] for node in convs)
    assert made["profiled_run"]["median_ms"] > 0
    out = profiled("-b", "ort").out
    assert re.search(
        r"times of onnxruntime [\d.]+'s nodes are from 3 runs with its profiler, .* whole microseconds", out
    )
    assert "/net/conv_" in out


@needs_ort
@pytest.mark.parametrize(("section", "kind"), [("Bad", "float"), ("Good", "integer")])
def test_what_onnxruntime_computes_in(folder: Path, section: str, kind: str) -> None:
    """SiLU of int8 tensors runs in float, of uint8 ones in integers: per node, per group, and summed up."""
    save(onnx.parser.parse_model(RULES["QR606"].sections[section]), folder / "silu.onnx")
    options = ("profile", "silu.onnx", "--random", "-n", "3", "--against", "ort")
    nodes = call(*options, "--json").json["against"]["nodes"]
    found = {n["op"]: n.get("arithmetic") for n in nodes if not n["inserted"]}
    assert {op: found.pop(op) for op in ("Conv", "Sigmoid", "Mul")} == dict.fromkeys(("Conv", "Sigmoid", "Mul"), kind)
    assert set(found.values()) == {None}
    count = 1 if kind == "integer" else 0
    line = f"onnxruntime computed in integers: {count} of 1 Conv, {count} of 1 Sigmoid, {count} of 1 Mul"
    shown = " ".join(call(*options, "--by", "op").out.split())
    assert line in shown
    assert "ort in" in shown


@needs_ort
def test_against_onnxruntime() -> None:
    made = profiled("--against", "ort", "--json").json
    against = made["against"]
    groups = against["groups"]
    assert sorted(i for group in groups for i in group["nodes"]) == list(range(made["model"]["nodes"]))
    for mine, theirs in (("events", made["nodes"]), ("other_events", against["nodes"])):
        assert sorted(i for group in groups for i in group[mine]) == list(range(len(theirs)))
    for key, nodes in (("median_ms", made["nodes"]), ("other_ms", against["nodes"])):
        assert sum(g[key] or 0 for g in groups) == pytest.approx(sum(n["median_ms"] for n in nodes))
    assert against["ratio"] == pytest.approx(against["run"]["median_ms"] / made["run"]["median_ms"])
    assert made["environment"]["threads_used"] == usable_cpus()
    out = profiled("--against", "ort").out
    assert against["verdict"] == "few runs"
    verdict = "inconclusive: 10 runs or more are needed (-n); qrun "
    assert verdict in out
    assert out.index(verdict) < out.index("Whole model")
    assert re.search(r"^  qrun  .*\n  onnxruntime  ", out, re.MULTILINE)
    assert re.search(r"^ +all groups +[\d.]+ .s +[\d.]+ .s ", out, re.MULTILINE)
    assert "  ort: timed with onnxruntime's profiler" in out, "its nodes' times are not of plain runs"
    assert re.search(r"^ +call overhead +[\d.u]+", out, re.MULTILINE)


@needs_ort
def test_against_onnxruntime_by_operator() -> None:
    words = ("--against", "ort", "--by", "op")
    out = profiled(*words).out
    head, _, table = out.partition("By operator, slowest first\n")
    assert "Slowest groups" not in out
    assert "ort/qrun" not in head
    assert re.search(r"^  Conv +4 +\d+ .*[mu]s .*[mu]s ", table, re.MULTILINE)
    made = profiled(*words, "--json").json["against"]
    ran = [group for group in made["groups"] if not group["folded"]]
    assert sum(op["groups"] for op in made["operators"]) == len(ran)
    for key in ("median_ms", "other_ms"):
        assert sum(op[key] for op in made["operators"]) == pytest.approx(sum(group[key] or 0 for group in ran))
    times = [max(op["median_ms"], op["other_ms"]) for op in made["operators"]]
    assert times == sorted(times, reverse=True)
    rows = list(csv.DictReader(io.StringIO(profiled(*words, "--format", "csv").out)))
    assert {row["op"]: row["groups"] for row in rows} == {op["op"]: str(op["groups"]) for op in made["operators"]}
    assert all(float(row["other_ms"]) >= 0 for row in rows)


@needs_native
@pytest.mark.parametrize(
    "words", [(), ("--by", "op"), AGAINST, pytest.param(("--against", "ort", "--by", "op"), marks=needs_ort)]
)
def test_roof_has_its_legend_and_its_topic(words: Sequence[str]) -> None:
    out = profiled(*words).out
    assert out.count("roof: share of ") == 1
    assert "roof column" in call("explain", "roof").out


@needs_ort
def test_a_trace_beside_onnxruntime_says_whose_it_is() -> None:
    assert "t.json contains qrun's last run, not ort's" in profiled("--against", "ort", "--trace", "t.json").err
    assert "none of" not in profiled("--trace", "t.json").err


@pytest.mark.parametrize("words", BACKENDS)
def test_batch_warm_up_and_runs_are_those_asked_for(words: Sequence[str]) -> None:
    made = call("profile", "deep.onnx", "--random", "--shape", "N=8", "-n", "4", "--warmup", "2", *words, "--json").json
    assert made["inputs"][0]["shape"] == [8, 3, 8, 8]
    assert made["symbols"] == {"N": 8}
    sides = [made, made["against"]] if made["against"] else [made]
    for side in sides:
        assert (len(side["warmup_ms"]), len(side["run"]["samples_ms"])) == (2, 4)
        assert {len(node["samples_ms"]) for node in side["nodes"]} == {4}
        assert sum(node["macs"] for node in side["nodes"]) == 3 * 8 * 3 * 3 * 64


@needs_ort
def test_against_needs_a_backend_of_qrun() -> None:
    for backend in ("ort", "onnx-ref"):
        ended = profiled("--against", "ort", "-b", backend)
        assert ended.code == 2
        assert "not another runtime" in ended.err
    assert profiled("--against", "ort", "-b", "reference").code == 0
    assert profiled("--against", "no").code == 2


@needs_ort
def test_a_model_from_stdin(folder: Path) -> None:
    model = (folder / "net.onnx").read_bytes()
    ended = call("profile", "-", "-i", "x.npy", "-n", "2", "--against", "ort", "--json", stdin=model)
    assert ended.code == 0
    assert len(ended.json["against"]["groups"]) > 5


@needs_ort
def test_what_onnxruntime_refuses_ends_with_its_words() -> None:
    ended = profiled("--against", "ort", model="equal.onnx")
    assert ended.code == 4
    assert "two nodes with same node name" in ended.err


@pytest.mark.parametrize("words", BACKENDS)
@pytest.mark.parametrize("format", ["text", "markdown", "csv"])
def test_every_format_of_every_backend(words: Sequence[str], format: str) -> None:
    ended = profiled(*words, "--format", format, encoding="ascii")
    assert ended.code == 0
    assert "Conv" in ended.out


def test_onnx_reference_gives_whole_runs() -> None:
    words = ("profile", "deep.onnx", "--random", "--shape", "N=1", "-n", "2", "-b", "onnx-ref")
    assert "onnx.reference times whole runs only" in call(*words).out
    made = call(*words, "--json").json
    jsonschema.validate(made, closed(SCHEMA))
    assert (len(made["run"]["samples_ms"]), made["nodes"], made["operators"]) == (2, [], [])
    assert list(csv.DictReader(io.StringIO(call(*words, "--format", "csv").out))) == []


@pytest.mark.parametrize("words", BACKENDS)
@pytest.mark.parametrize("command", ["run", "profile"])
def test_traces_of_all_backends(command: str, words: Sequence[str], folder: Path) -> None:
    words = () if command == "run" and "--against" in words else words
    more = ("-n", "2") if command == "profile" else ()
    assert call(command, "net.onnx", "-i", "x.npy", *more, *words, "--trace", "t.json").code == 0
    events = json.loads((folder / "t.json").read_text())
    assert any(e["name"].startswith("/net/conv_") for e in events if e["cat"] == "Node")
    assert not any("_kernel_time" in e["name"] for e in events)
    check_tracks(events)


def check_tracks(events: list[dict[str, Any]]) -> None:
    """Nothing before the beginning, nothing at the same time on one track."""
    run = next(e for e in events if e["name"] == "model_run")
    for event in events:
        assert all(type(event[key]) is int for key in ("pid", "tid"))
    parts = [e for e in events if e["cat"] in ("Node", "Thread")]
    assert all(run["ts"] - 2 <= e["ts"] <= e["ts"] + e["dur"] <= run["ts"] + run["dur"] + 4 for e in parts)
    for track in {e["tid"] for e in parts}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in parts if e["tid"] == track)
        assert all(end <= start + 2 for (_, end), (start, _) in zip(mine, mine[1:], strict=False))


def test_a_track_per_thread() -> None:
    from helpers.profile import chain, event

    from qrun.report.trace import trace
    from qrun.running.session import RunResult

    nodes = (event(0, ns=5000, helpers=((1, 1000, 2000), (2, 1000, 3000))), event(1, ns=0))
    events = json.loads(trace(chain(["Conv", "Conv"]), RunResult({}, nodes, 9000, 0), backend="native"))
    pid = events[0]["pid"]
    parts = [(e["cat"], e["tid"] - pid, e["ts"], e["dur"]) for e in events if e["cat"] in ("Node", "Thread")]
    assert parts == [("Node", 0, 0, 5), ("Thread", 1, 1, 2), ("Thread", 2, 1, 3), ("Node", 0, 0, 0)]
    names = {e["tid"] - pid: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "leader", 1: "helper 1", 2: "helper 2"}
    assert all("cat" in e for e in events)


@needs_native
def test_a_trace_of_threads_is_whole(folder: Path) -> None:
    assert profiled("--threads", "3", "--trace", "t.json").code == 0
    check_tracks(json.loads((folder / "t.json").read_text()))


@pytest.mark.parametrize("busy", [False, True])
def test_a_roof_is_kept_beside_the_kernels_unless_other_work_disturbed_it(
    folder: Path, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qrun.native.machine.peak import Peak

    monkeypatch.setattr(Peak, "busy", busy)
    kept = folder / "kept"
    ended = profiled(env={"QRUN_CACHE_DIR": str(kept)})
    assert ("the roof was measured on a busy machine and is not kept" in ended.out) == (busy and bool(available()))
    assert len(list(kept.glob("*.machine"))) == (bool(available()) and not busy)
    profiled("--no-cache", env={"QRUN_CACHE_DIR": str(folder / "other")})
    assert not (folder / "other").exists()


# For timelines and flame graphs


def stacks(text: str) -> dict[str, int]:
    """Collapsed stacks as flamegraph.pl reads them: the count behind the last space."""
    found = [re.fullmatch(r"(.+) (\d+)", line) for line in text.splitlines()]
    assert all(found), text
    return {line[1]: int(line[2]) for line in found if line}


def test_collapsed_stacks_have_the_median_of_each_node() -> None:
    ended = profiled("--format", "perf")
    found = stacks(ended.out)
    nodes = {key: ns for key, ns in found.items() if not key.endswith(";call overhead")}
    rows = profiled("--json").json["nodes"]
    assert list(nodes) == [f"net.onnx;{row['op']};{row['name']}" for row in rows]
    assert sum(nodes.values()) > 0


def test_names_cannot_break_a_stack(folder: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="a;b\nc 7\u2603")
    save(make_model([node], {"x": [1]}, "y"), folder / "odd.onnx")
    npy(folder / "u.npy", np.zeros(1, np.float32))
    ended = call("profile", "odd.onnx", "-i", "u.npy", "-n", "2", "--format", "perf", encoding="ascii")
    key = next(key for key in stacks(ended.out) if ";Relu;" in key)
    assert key == "odd.onnx;Relu;a:b\\nc 7\\u2603"


def test_the_chrome_trace_is_that_of_the_option_trace() -> None:
    events = json.loads(profiled("--format", "chrome").out)
    assert profiled("--trace", "t.json").code == 0
    kept = [(e["cat"], e["name"]) for e in json.loads(Path("t.json").read_text()) if e["cat"] in ("Node", "Session")]
    assert [(e["cat"], e["name"]) for e in events if e["cat"] in ("Node", "Session")] == kept


@pytest.mark.parametrize("form", ["chrome", "perf"])
def test_beside_onnxruntime_a_note_says_whose_times_these_are(form: str) -> None:
    ended = profiled("--against", "ort", "--format", form)
    assert f"--format {form} has qrun's times; --backend ort has the other ones" in ended.err


def test_a_runtime_without_times_of_nodes_has_one_stack(folder: Path) -> None:
    save(make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, "y"), folder / "float.onnx")
    ended = call("profile", "float.onnx", "--random", "-n", "3", "--backend", "onnx-ref", "--format", "perf")
    ((key, ns),) = stacks(ended.out).items()
    assert key == "float.onnx"
    assert ns > 0
