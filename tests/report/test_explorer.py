"""``qrun report --model-explorer DIR``: graphs, node data, and two graphs in step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, npy, save, says

DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits"
QDQ, FLOAT = (str(DIGITS / form / "model.onnx") for form in ("qdq", "float"))
GIVEN = ("-i", str(DIGITS / "x.npy"), "-n", "3", "--config", "none", "-o", "page.html")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str) -> Any:
    return json.loads(Path("me", name).read_text("ascii"))


def nodes(name: str) -> dict[str, dict[str, Any]]:
    """The nodes of the graph in a file by id, each id once; edges lead from outputs that are there."""
    (graph,) = read(name)["graphs"]
    made = {node["id"]: node for node in graph["nodes"]}
    assert len(made) == len(graph["nodes"])
    for node in made.values():
        assert {"id", "label", "namespace"} <= set(node), "the page does not draw a graph without these"
        for edge in node.get("incomingEdges", ()):
            ids = [item["id"] for item in made[edge["sourceNodeId"]]["outputsMetadata"]]
            assert edge["sourceNodeOutputId"] in ids
    return made


def data(name: str) -> dict[str, Any]:
    ((graph, found),) = read(name).items()
    assert graph == read("graph.json")["graphs"][0]["id"]
    assert set(found["results"]) <= set(nodes("graph.json"))
    return {index: value["value"] for index, value in found["results"].items()}


def test_two_graphs_with_time_sqnr_and_cause() -> None:
    ended = call("report", QDQ, *GIVEN, "--against", FLOAT, "--model-explorer", "me")
    assert ended.code == 0, ended.err
    assert "model-explorer me/graph.json --node_data_paths me/time.json,me/sqnr.json,me/cause.json" in ended.out
    assert Path("page.html").exists()
    mine, other = nodes("graph.json"), nodes("against.json")
    proto = onnx.load(QDQ)
    assert len(mine) == len(proto.graph.node) + 2
    assert all(us > 0 for us in data("time.json").values())
    assert all(10 < db < 80 for db in data("sqnr.json").values())
    assert "rounding" in data("cause.json").values()
    pairs = read("sync.json")["mappingEntries"]
    assert all(set(p["leftNodeIds"]) <= set(other) and set(p["rightNodeIds"]) <= set(mine) for p in pairs)
    same = {
        i
        for p in pairs
        for i in p["leftNodeIds"]
        for o in p["rightNodeIds"]
        if other[i]["label"] == mine[o]["label"] == "Conv"
    }
    assert len(same) == 4
    assert sum(node["label"] == "Conv" for node in other.values()) == 4


def test_it_agrees_with_the_comparison() -> None:
    """The worst node in sqnr.json is the worst tensor that qrun compare lists."""
    call("report", QDQ, *GIVEN, "--against", FLOAT, "--model-explorer", "me")
    found = call("compare", FLOAT, QDQ, "-i", str(DIGITS / "x.npy"), "--json").json
    values = {str(t["node"]): t["cumulated"]["sqnr_db"] for t in found["tensors"] if t["node"] is not None}
    shown = data("sqnr.json")
    assert min(shown.values()) == pytest.approx(min(v for v in values.values() if v != "inf"))
    causes = {str(cost["index"]): cost["reason"] for cost in found["costs"] if cost["reason"]}
    assert data("cause.json") == causes


def test_against_a_runtime_and_without_anything() -> None:
    call("report", QDQ, *GIVEN, "--against", "fused", "--model-explorer", "me")
    assert data("cause.json") == {"30": "fused-requantization"}
    assert not Path("me", "sync.json").exists()
    ended = call("report", QDQ, *GIVEN, "--model-explorer", "other dir")
    assert sorted(path.name for path in Path("other dir").iterdir()) == ["graph.json", "time.json"]
    assert "model-explorer 'other dir/graph.json' --node_data_paths 'other dir/time.json'" in ended.out


def test_names_become_layers_and_shapes_are_told(folder: Path) -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}>'
        " { a = Add (x, w) y = Relu (a) }"
    )
    graph.graph.node[0].name = "/block/conv/Add"
    save(graph, folder / "m.onnx")
    npy(folder / "x.npy", np.zeros((2, 3), np.float32))
    call("report", "m.onnx", "-i", "x.npy", "-n", "2", "--model-explorer", "me")
    made = nodes("graph.json")
    assert made["0"]["namespace"] == "block/conv"
    assert {"key": "w", "value": "float32 [3]"} in made["0"]["attrs"]
    assert made["inputs"]["outputsMetadata"][0]["attrs"][1] == {"key": "tensor_shape", "value": "float32 [2,3]"}
    assert [edge["sourceNodeId"] for edge in made["outputs"]["incomingEdges"]] == ["1"]


def test_a_copy_of_the_model_has_the_same_values_as_metadata(folder: Path) -> None:
    """IR version and results stay; a second copy has each key once."""
    words = ("report", QDQ, *GIVEN, "--against", FLOAT, "--annotate", "told.onnx", "--model-explorer", "me")
    assert "annotate netron told.onnx" in call(*words).out
    proto, before = onnx.load("told.onnx"), onnx.load(QDQ)
    onnx.checker.check_model(proto)
    told = {str(at): {e.key: e.value for e in node.metadata_props} for at, node in enumerate(proto.graph.node)}
    for key, name, form in (("time_us", "time", ".4g"), ("sqnr_db", "sqnr", ".4g"), ("cause", "cause", "")):
        shown = {at: found[f"qrun.{key}"] for at, found in told.items() if f"qrun.{key}" in found}
        assert shown == {at: format(value, form) for at, value in data(f"{name}.json").items()}
    assert call("compare", QDQ, "told.onnx", "-i", str(DIGITS / "x.npy"), "--json").json["equal"]
    call("report", "told.onnx", *GIVEN, "--annotate", "again.onnx")
    again = onnx.load("again.onnx")
    assert all(len({e.key for e in node.metadata_props}) == len(node.metadata_props) for node in again.graph.node)
    assert not any(e.key == "qrun.cause" for node in again.graph.node for e in node.metadata_props)
    for node in again.graph.node:
        del node.metadata_props[:]
    assert again.SerializeToString() == before.SerializeToString()


def test_a_copy_never_replaces_the_model(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(Path(QDQ).read_bytes())
    says(call("report", "m.onnx", *GIVEN, "--annotate", "m.onnx"), 2, "it is the model of this command")
    says(call("report", "m.onnx", *GIVEN, "--annotate", "page.html"), 2, "it is the page")
    assert (folder / "m.onnx").read_bytes() == Path(QDQ).read_bytes()


def test_it_refuses_what_has_no_graph(folder: Path) -> None:
    says(call("report", QDQ, FLOAT, *GIVEN, "--model-explorer", "me"), 2, "--model-explorer takes one model")
    (folder / "saved.json").write_text(json.dumps(call("check", QDQ, "--json").json))
    says(call("report", "saved.json", "--model-explorer", "me"), 2, "saved results, which have no graph")
    (folder / "file").write_text("")
    ended = call("report", QDQ, *GIVEN, "--model-explorer", "file")
    says(ended, 2, "file")
    assert "profile" not in ended.out, "before anything is measured"
    assert not Path("me").exists()
