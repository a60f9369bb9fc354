"""Files of targets: what is read, what is refused and how, names and entry points, and the verdict of a model."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.target_models import MAPS, Build, F, Q, channels, conv, lone, unary
from onnx import helper

from qrun.checking import targets
from qrun.errors import CallError
from qrun.ir.load import load

SCHEMA = jsonschema.Draft202012Validator(json.loads(files("qrun").joinpath("schemas/target-1.0.json").read_text()))
FOLDER = Path(targets.__file__).parent
MODELS = Path(__file__).parents[2] / "models"
SIX = ("ethos-u55", "onnxruntime-cpu", "openvino-cpu", "qnn-htp", "tensorrt", "vitisai-xint8")


def own(**more: Any) -> dict[str, Any]:
    """A small target."""
    rule = {"id": "r", "operators": ["Conv"], "require": {"port": "w", "axis": 0}, "otherwise": "cpu"}
    rule |= {"cause": "its axis is not 0", "fix": "axis=0", "source": "a page", "proof": "docs"}
    top = {"schema": "qrun/target/1.0", "name": "Mine", "on": "boards", "versions": ["1.0"], "proof": "its pages"}
    return {**top, "verified": False, "define": {}, "options": {"arch": 1}, "rules": [rule], **more}


def with_condition(condition: Any, **more: Any) -> dict[str, Any]:
    made = own(**more)
    made["rules"][0]["require"] = condition
    return made


def read(document: Any, folder: Path) -> targets.DeployTarget:
    path = folder / "mine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return targets.load_target(path)


def refused(document: Any, folder: Path) -> str:
    with pytest.raises(CallError) as caught:
        read(document, folder)
    assert caught.value.code == "QR017"
    return str(caught.value)


@pytest.mark.parametrize("name", SIX)
def test_files_are_as_the_schema_says(name: str) -> None:
    document = json.loads((FOLDER / f"{name}.json").read_text())
    SCHEMA.validate(document)
    for rule in document["rules"]:
        assert not rule["cause"].endswith(".")
        assert rule["proof"]
    assert document["proof"]
    assert document["verified"] or "not run" in document["proof"]
    assert document["not_judged"]


def test_names() -> None:
    assert set(SIX) <= set(targets.names())


def test_own_file(tmp_path: Path) -> None:
    found = read(own(), tmp_path)
    assert (found.id, found.name, found.version) == ("mine", "Mine", "1.0")
    verdict = found.verdict(load(conv().SerializeToString()))
    assert verdict.worst == "int"


@pytest.mark.parametrize(("w", "rules"), [(channels(), {"crashes"}), (channels(axis=1), {"r"})])
def test_a_rule_about_nodes_in_integers(w: Q, rules: set[str], tmp_path: Path) -> None:
    """It says nothing of a node that another rule keeps from integers, whatever their order."""
    document = own()
    crash = {**document["rules"][0], "id": "crashes", "require": {"port": "x", "type": "uint8"}}
    document["rules"].insert(0, {**crash, "otherwise": "crash", "in_integers": True})
    verdict = read(document, tmp_path).verdict(load(conv(w=w).SerializeToString()))
    assert {rule.id for each in verdict.judged for rule in each.rules} == rules


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (own(rulez=[]), ["no such key", "rulez", "write rules"]),
        (own(verified="yes"), ["verified", "true or false", "a text"]),
        (own(versions=[]), ["no version"]),
        (own(versions=["v1"]), ["numbers with dots", "v1"]),
        (own(schema="qrun/target/2.0"), ["another format", "qrun/target/2.0"]),
        (own(rules=[{}]), ["rules[0]", "id is missing"]),
        (own(rules=[own()["rules"][0]] * 2), ["rules[1].id", "two rules have one id"]),
        (own(prepare={"fuse": []}), ["prepare", "no such key", "write fuses"]),
        (with_condition({"port": "w", "axes": 0}), ["rules[0].require", "axes", "write axis"]),
        (with_condition({"port": "v", "axis": 0}), ["no such port", "v"]),
        (with_condition({"port": "w", "type": "int9"}), ["no such element type", "int9"]),
        (with_condition({"port": "w", "axis": {"max": "1"}}), ["require.axis.max", "a number", "a text"]),
        (with_condition({"ports": "w"}), ["no such condition", "write port"]),
        (with_condition({"use": "group"}), ["no condition has this name under define", "group"]),
        (with_condition({"option": "archi", "is": 1}), ["no such option", "write arch"]),
        (with_condition({"hook": "open"}), ["no such hook", "open"]),
        (with_condition({"any": {"port": "w"}}), ["require.any", "a list", "an object"]),
        (with_condition([]), ["require", "an object", "a list"]),
        (own(define={"a": {"use": "b"}, "b": {"not": {"use": "a"}}}), ["a condition uses itself", "a -> b -> a"]),
        (own(define={"a": {"use": "a"}}), ["a condition uses itself", "a -> a"]),
        ("[]", ["an object", "a list"]),
        ("{", ["cannot be read"]),
        ('{"name": NaN}', ["NaN"]),
        ("[" * 100_000, ["cannot be read"]),
        (" " * (1 << 20) + "{}", ["too large"]),
        (own(rules=own()["rules"] * 1001), ["too many rules"]),
    ],
    ids=str,
)
def test_a_wrong_file_says_where(document: Any, says: list[str], tmp_path: Path) -> None:
    told = refused(document, tmp_path)
    assert "mine.json" in told
    for words in says:
        assert words in told


def test_conditions_have_limits(tmp_path: Path) -> None:
    """Neither depth nor doubling makes more work than the limits."""
    deep: Any = {"opset": 1}
    for _ in range(20):
        deep = {"not": deep}
    assert "nested too deeply" in refused(with_condition(deep), tmp_path)
    doubling = {"c0": {"opset": 1}} | {f"c{k}": {"all": [{"use": f"c{k - 1}"}] * 2} for k in range(1, 60)}
    start = time.perf_counter()
    assert "too many parts" in refused(with_condition({"use": "c59"}, define=doubling), tmp_path)
    chain = {"c0": {"opset": 1}} | {f"c{k}": {"use": f"c{k - 1}"} for k in range(1, 900)}
    assert "too many parts" in refused(with_condition({"use": "c899"}, define=chain), tmp_path)
    assert time.perf_counter() - start < 2


def values(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a document."""
    yield path
    for key, value in document.items() if isinstance(document, dict) else ():
        yield from values(value, (*path, key))
    for at, value in enumerate(document if isinstance(document, list) else ()):
        yield from values(value, (*path, at))


def changed(rng: np.random.Generator, document: Any, paths: list[tuple[Any, ...]]) -> Any:
    """The document with another value, or another key, at one place."""
    made = copy.deepcopy(document)
    *way, last = paths[int(rng.integers(1, len(paths)))]
    holder = made
    for key in way:
        holder = holder[key]
    if isinstance(last, str) and rng.random() < 0.3:
        holder[str(rng.choice([last + "x", "is", "min", "type", "not"]))] = holder.pop(last)
    elif rng.random() < 0.2:
        del holder[last]
    else:
        choices: list[Any] = [None, True, 3, -1.5, "x", "int8", [], ["x"], [1, 2], {}, {"min": 1}, {"opset": 3}, "1.0"]
        holder[last] = choices[int(rng.integers(len(choices)))]
    return made


@pytest.mark.parametrize("name", SIX)
def test_the_schema_and_qrun_agree(name: str, tmp_path: Path) -> None:
    """On changed files. Names that a file defines itself are beyond a schema. Whatever is read can judge."""
    document = json.loads((FOLDER / f"{name}.json").read_text())
    document["rules"] = document["rules"][::4]
    models = [load(proto.SerializeToString()) for proto in (conv(), unary("Abs"), lone(Q(zero=3)))]
    rng, paths, refusals = np.random.default_rng(SIX.index(name)), list(values(document)), 0
    for _ in range(150):
        made = changed(rng, document, paths)
        try:
            found = read(made, tmp_path)
            told = ""
            for model in models:
                found.verdict(model)
        except CallError as error:
            told = f"{error.message}; {error}"
        refusals += bool(told)
        if not any(own in told for own in ("under define", "no such option", "no such set", "two rules have")):
            wrong = [error.message for error in SCHEMA.iter_errors(made)]
            assert bool(wrong) == bool(told), (told, wrong[:2])
    assert refusals > 50


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="tensorrt") as caught:
        targets.find("tensorr")
    assert caught.value.code == "QR005"
    assert "tensorrt" in caught.value.fixes[0]
    with pytest.raises(CallError) as caught:
        targets.find(str(tmp_path / "none.json"))
    assert caught.value.code == "QR004"
    with pytest.raises(CallError, match="no version"):
        targets.find("onnxruntime-cpu@0.1")
    with pytest.raises(CallError, match="no option"):
        targets.find("qnn-htp", options={"arch": 73})


def test_versions_and_options() -> None:
    scale = load(conv(b=Q("int32", 2.0**-8, const=True, shape=(8,))).SerializeToString())
    assert targets.find("onnxruntime-cpu@1.24.4").verdict(scale).worst == "wrong"
    assert targets.find("onnxruntime-cpu").verdict(scale).worst == "float"
    sixteen = Q("int16", 2.0**-5, const=True, shape=(8, 8, 3, 3))
    model = load(conv(Q("int16"), sixteen, None, Q("int16")).SerializeToString())
    assert targets.find("qnn-htp").verdict(model).worst == "refused"
    assert targets.find("qnn-htp", options={"htp_arch": 73}).verdict(model).worst == "int"


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package brings a target, and is not imported."""
    package = tmp_path / "boards"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "data" / "mine-1.json").write_text(json.dumps(own()))
    info = tmp_path / "boards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boards\nVersion: 1.0\n")
    lines = ["[qrun.targets]", "board = boards/data/mine-1.json", "board2 = boards:data/mine-1.json"]
    lines += ["gone = boards/none.json", "out = boards/../boards-1.0.dist-info/METADATA"]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"board", "gone"} <= set(targets.names())
    assert targets.find("board").name == targets.find("board2").name == "Mine"
    for name in ("gone", "out"):
        with pytest.raises(CallError, match="names no file"):
            targets.find(name)


def test_verdict() -> None:
    """What a screen shows of TensorRT's verdict."""
    verdict = targets.find("tensorrt").verdict(load(conv(Q("uint8", zero=81)).SerializeToString()))
    assert verdict.worst == "refused"
    reasons = {reason.rule.id: reason for reason in verdict.reasons}
    zero = reasons["zero-point-0"]
    assert zero.operators == {"DequantizeLinear": 1, "QuantizeLinear": 1}
    assert zero.count == 2
    assert zero.seen == ("zero point 81", "zero point 81")
    assert zero.nodes[0] == "QuantizeLinear_0"
    assert zero.index == 0
    assert reasons["no-int32-bias"].seen == ("int32",)
    assert "QuantizeBias" in reasons["no-int32-bias"].rule.fix
    (count,) = verdict.integers
    assert (count.op, count.nodes, count.integer, count.fixed) == ("Conv", 1, 0, 1)
    assert "not run on a GPU" in verdict.proof
    assert verdict.not_judged


@pytest.mark.parametrize(
    ("name", "made", "rule", "seen"),
    [
        ("vitisai-xint8", lambda: conv(y=Q(scale=2.0**-12)), "shift-cut", "2^-3"),
        ("qnn-htp", lambda: unary("Sigmoid", shape=[1] * 6), "rank-5", "input 0: rank 6"),
        ("qnn-htp", lambda: conv(readers=1), "result-read-once", "result: 2 readers"),
        ("onnxruntime-cpu", lambda: conv(x=F()), "data-quantized", "input 0: not quantized"),
        ("ethos-u55", lambda: conv(strides=[4, 4]), "conv-strides", "strides 4, 4"),
        ("tensorrt", lambda: lone(Q(scale=0.0)), "scale-positive", "scale 0"),
        ("openvino-cpu", lambda: conv(w=Q("uint8", 0.1, 128, const=True)), "symmetric-weights", "weights: uint8"),
        ("ethos-u55", lambda: unary("MaxPool", y=Q(scale=0.5), kernel_shape=[1, 1]), "same-parameters", "scale"),
    ],
)
def test_what_was_seen(name: str, made: Callable[[], onnx.ModelProto], rule: str, seen: str) -> None:
    verdict = targets.find(name).verdict(load(made().SerializeToString()))
    reason = next(reason for reason in verdict.reasons if reason.rule.id == rule)
    assert seen in reason.seen[0]


def test_subgraphs_and_functions() -> None:
    """A branch of If, and a function of the model, are judged as the main graph is."""
    inner = lone(Q(zero=9))
    branch = inner.graph
    name, shape = branch.input[0].name, MAPS
    del branch.input[:]
    condition = helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, ())
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in (name, "y")]
    node = helper.make_node("If", ["c"], ["y"], "choose", then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "g", [condition, ends[0]], [ends[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    verdict = targets.find("tensorrt").verdict(load(model.SerializeToString()))
    (reason,) = verdict.reasons
    assert reason.count == 4
    assert "choose/then_branch/QuantizeLinear_0" in reason.nodes
    body = [helper.make_node("QuantizeLinear", ["a", "s", "z"], ["q"]), helper.make_node("Sin", ["a"], ["b"])]
    function = helper.make_function("mine", "f", ["a", "s", "z"], ["q", "b"], body, [helper.make_opsetid("", 21)])
    g = Build()
    call = helper.make_node("f", [g.feed(MAPS), *g.parameters(Q(zero=9))], ["q", "b"], "call", domain="mine")
    g.nodes.append(call)
    g.result("q", MAPS, "int8")
    proto = g.model()
    proto.functions.append(function)
    verdict = targets.find("tensorrt").verdict(load(proto.SerializeToString()))
    assert [reason.rule.id for reason in verdict.reasons] == ["zero-point-0"]


def test_models_that_run_in_integers() -> None:
    """No false alarm: onnxruntime runs all of these in integers (`tests/rules/test_integers.py` asks it)."""
    known = targets.find("onnxruntime-cpu")
    for name in ("qdq", "qoperator", "dynamic"):
        verdict = known.verdict(load(MODELS / "digits" / name / "model.onnx"))
        assert verdict.worst == "int"
        assert verdict.integers
        assert all(count.integer == count.nodes for count in verdict.integers)


@pytest.mark.parametrize("name", SIX)
def test_a_symmetric_convolution_runs_everywhere(name: str) -> None:
    """int8, zero point 0, scales that are powers of two, fixed shapes: no target has a word to say."""
    verdict = targets.find(name).verdict(load(conv(b=None).SerializeToString()))
    assert verdict.reasons == ()
    assert [(count.op, count.integer) for count in verdict.integers] == [("Conv", 1)]


def test_speed() -> None:
    """A model of 1,000 nodes against all six targets takes less than 2 s."""
    g = Build()
    name = g.feed(MAPS)
    for _ in range(200):
        q = Q(scale=[2.0**-5] * 8, zero=0, axis=0, const=True, shape=(8, 8, 3, 3))
        name = g.add("Conv", [g.pair(name, Q(), MAPS), g.read(q, MAPS)], MAPS, pads=[1] * 4, kernel_shape=[3, 3])
        name = g.add("Relu", [name], MAPS)
    g.result(name, MAPS)
    model = load(g.model().SerializeToString())
    assert len(model.nodes) == 1000
    start = time.process_time()
    for each in SIX:
        targets.find(each).verdict(model)
    assert time.process_time() - start < 2
