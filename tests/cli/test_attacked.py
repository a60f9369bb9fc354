"""Hostile input and bare nodes: every command answers, or refuses with a name and the right code; none crashes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call, deep_model, process, save, says, value
from helpers.models import make_model, typed
from helpers.mutator import answers, command, mutants
from onnx import TensorProto, helper, numpy_helper

import qrun.running.machine
from qrun.report import profilerows
from qrun.running.cpus import usable_cpus
from qrun.running.machine import Machine

F32, BF16, UINT8 = TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.UINT8


@pytest.fixture(autouse=True)
def model(folder: Path) -> None:
    save(deep_model(2), folder / "m.onnx")


def test_damaged_models_end_every_command_in_an_answer(folder: Path) -> None:
    seed = 11
    for number, data in mutants(90, seed):
        words = command(number, folder / "m.onnx")
        (folder / "m.onnx").write_bytes(data)
        ended = call(*words)
        assert ended.code in answers(words), (seed, number, words, ended.err)
        assert "Traceback" not in ended.err, (seed, number, words)
        if "--json" in words:
            assert ended.json["exit_code"] == ended.code, (seed, number, words)


def _round_trip(fed: tuple[str, ...], listed: tuple[str, ...] = ()) -> onnx.ModelProto:
    """QuantizeLinear and back. fed: parameters that are inputs; listed: initializers that are listed as inputs too."""
    parameters = {"s": np.array(0.5, np.float32), "z": np.array(3, np.uint8)}
    types = {"s": value("s", F32, ()), "z": value("z", UINT8, ())}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dequantize"),
    ]
    made = make_model(nodes, [value("x", F32, (3, 4)), *(types[n] for n in (*fed, *listed))], {"y": (3, 4)})
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in parameters.items() if n not in fed)
    return made


@pytest.mark.parametrize("fed", [("s",), ("z",), ("s", "z")])
def test_scales_and_zero_points_that_are_inputs(folder: Path, fed: tuple[str, ...]) -> None:
    save(_round_trip(fed), folder / "m.onnx")
    ended = call("compare", "m.onnx", "m.onnx", "--random", "--json")
    assert ended.code == 0, ended.err
    assert all(output["equal"] for output in ended.json["outputs"])


def test_initializers_listed_as_inputs_are_constants_unless_they_are_fed(folder: Path) -> None:
    """As files of IR version 3 list them."""
    save(_round_trip((), ("s", "z")), folder / "m.onnx")
    save(_round_trip(()), folder / "plain.onnx")
    np.save(folder / "s.npy", np.array(0.25, np.float32))
    np.save(folder / "x.npy", np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4))
    kept = call("compare", "m.onnx", "m.onnx", "-i", "x=x.npy", "--json")
    plain = call("compare", "plain.onnx", "plain.onnx", "-i", "x=x.npy", "--json")
    fed = call("compare", "m.onnx", "m.onnx", "-i", "x=x.npy", "-i", "s=s.npy", "--json")
    assert (kept.code, plain.code, fed.code) == (0, 0, 0), kept.err + plain.err + fed.err
    assert [t["tensor"] for t in kept.json["tensors"]] == [t["tensor"] for t in plain.json["tensors"]]


def test_element_types_that_an_operator_does_not_take_are_refused_when_two_models_are_compared(folder: Path) -> None:
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], name="odd")
    made = make_model([node], {"x": typed(BF16, (3, 4))}, {"y": (3, 4)})
    made.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "s"))
    save(made, folder / "m.onnx")
    says(call("compare", "m.onnx", "m.onnx", "--random"), 5, "QR203", "odd", "bfloat16")


@pytest.mark.parametrize("number", [BF16, TensorProto.INT4, TensorProto.FLOAT8E4M3FN])
def test_tensors_of_new_types_that_only_get_another_name_pass_through(folder: Path, number: int) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    made = make_model([node], {"x": typed(number, (3, 4))}, {"y": typed(number, (3, 4))})
    save(made, folder / "m.onnx")
    ended = call("compare", "m.onnx", "--random", "--against", "fused")
    assert ended.code == 0, ended.out + ended.err
    assert call("profile", "m.onnx", "--random", "-n", "1").code == 0


def test_names_longer_than_the_file_system_takes(folder: Path) -> None:
    long = "a" * 300
    for words in (
        ["report", "m.onnx", "--random", "-n", "1", "--output", f"{long}.html"],
        ["profile", "m.onnx", "--random", "-n", "1", "--trace", long],
        ["compare", "m.onnx", "--random", "--record", long],
        ["run", "m.onnx", "--random", "--output", f"{long}/"],
    ):
        ended = call(*words)
        assert ended.code == 2, (words, ended.err)
        assert "QR008" in ended.err
    for words in (
        ["check", long],
        ["profile", f"{long}.onnx"],
        ["report", f"{long}.json"],
        ["compare", "m.onnx", long],
    ):
        ended = call(*words, *(["--random"] if words[0] == "compare" else []))
        assert ended.code == 2, (words, ended.err)
        assert "QR004" in ended.err


@pytest.mark.parametrize("words", [["-"], [""], ["--record", ""]])
def test_a_second_side_without_a_name(words: list[str]) -> None:
    says(call("compare", "m.onnx", *words, "--random"), 2, "QR005")


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
@pytest.mark.parametrize("command", [["compare", "m.onnx", "--random"], ["check", "m.onnx"]])
def test_nan_is_no_tolerance(command: list[str], option: str) -> None:
    says(call(*command, option, "nan"), 2, "'nan' is not a number of 0 or more")


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor before Python starts")
def test_a_page_for_a_closed_stdout(folder: Path) -> None:
    (folder / "check.json").write_text(call("check", "m.onnx", "--json").out)
    ended = process("report", "check.json", "--output", "-", cwd=folder, preexec_fn=lambda: os.close(1))
    assert ended.code == 2
    assert "QR008" in ended.err


def test_the_machine_is_measured_with_no_more_threads_than_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def this_machine(cache: str | bool, threads: int, **rest: object) -> Machine:
        measured.append(threads)
        return machine(cache, threads, **rest)  # type: ignore[arg-type]

    machine = qrun.running.machine.this_machine
    monkeypatch.setattr(profilerows, "this_machine", this_machine)
    ended = call("profile", "m.onnx", "--random", "-n", "2", "--threads", "64")
    assert ended.code == 0, ended.err
    assert measured
    assert max(measured) <= usable_cpus()


COMMANDS = (
    ["run M --random"],
    ["run M --random --backend reference"],
    ["check M"],
    ["inspect M --nodes", "inspect M --json"],
    ["profile M --random -n 3", "profile M --random -n 1 --by op --json", "report M --random -n 3 -o page.html"],
    ["compare M --random --against reference", "compare M --random --against fused", "compare M M --random"],
)
"""Each node gets one command of every row, in turn."""
SPARE = [
    ("Shape", ["x"], []), ("Shape", ["x"], [""]), ("Relu", ["x"], []), ("Relu", ["x"], [""]), ("Relu", [], ["z"]),
    ("Relu", [""], ["z"]), ("Relu", [], []), ("Constant", [], []), ("Constant", [], ["z"]), ("Identity", ["x"], []),
    ("Split", ["x"], ["", ""]), ("Split", ["x"], []), ("Dropout", ["x"], [""]), ("Dropout", ["x"], []),
    ("DynamicQuantizeLinear", ["x"], ["", "", ""]), ("DynamicQuantizeLinear", ["x"], []),
    ("DynamicQuantizeLinear", ["x"], ["", "s", ""]), ("QuantizeLinear", ["x", "s0"], []),
    ("QuantizeLinear", ["x", "s0"], [""]), ("QuantizeLinear", [], ["z"]), ("DequantizeLinear", ["q", "s0"], []),
    ("DequantizeLinear", ["q", "s0"], [""]), ("DequantizeLinear", ["", ""], ["z"]), ("DequantizeLinear", [], []),
    ("Conv", ["x", "w"], []), ("Conv", ["x", "w"], [""]), ("Conv", [], ["z"]), ("QLinearConv", [], []),
    ("QLinearConv", ["q", "s0", "z0", "q", "s0", "z0", "s0", "z0"], []), ("MatMul", ["x", "x"], [""]),
    ("MatMulInteger", ["q", "q"], []), ("MaxPool", ["x"], []), ("Concat", [], ["z"]), ("Concat", ["", ""], ["z"]),
    ("Concat", ["x"], []), ("Softmax", ["x"], [""]), ("Sum", [], ["z"]), ("Cast", ["x"], []), ("NoSuch", [], []),
    ("If", [], []), ("Loop", ["", ""], []), ("Reshape", ["x"], []), ("Size", ["x"], [""]), ("Range", [], []),
]  # fmt: skip


def with_a_spare_node(op_type: str, inputs: list[str], outputs: list[str]) -> onnx.ModelProto:
    """y = Relu(x + x) and, before that, a node."""
    spare = helper.make_node(op_type, inputs, outputs, "spare")
    nodes = [spare, helper.make_node("Add", ["x", "x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    codes = np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3)
    constants = {"w": np.ones((2, 2, 1, 1), np.float32), "s0": np.float32(1), "z0": np.uint8(1), "q": codes}
    return make_model(nodes, {"x": codes.shape}, {"y": codes.shape}, constants, opset=17)


@pytest.mark.parametrize("number", range(len(SPARE)), ids=lambda number: "-".join(map(str, SPARE[number])))
def test_every_command(number: int) -> None:
    onnx.save(with_a_spare_node(*SPARE[number]), "m.onnx")
    codes = {}
    for choice in COMMANDS:
        words = choice[number % len(choice)].replace("M", "m.onnx").split()
        ended = call(*words)
        assert ended.code in (0, 1, 2, 3, 4, 5), f"{' '.join(words)}: exit {ended.code}\n{ended.err}"
        codes[words[0]] = ended.code
    assert (codes["run"] == 0) == (codes.get("profile", codes.get("report")) == 0), codes
