"""Reports of comparisons with files: what a reader relies on, on any stream, whatever is in the names."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qrun.comparing.differences import EXACT, Difference, Tolerance
from qrun.comparing.records.compare import RecordComparison, judged
from qrun.comparing.records.record import Recorded, RecordEntry, filled
from qrun.comparing.saved import ArrayPair, ElementPair, Found, SavedArrays, SavedChecks, compare_npz
from qrun.comparing.savedprofiles import Change, Lone, NodeChange, SavedProfiles
from qrun.comparing.settings import Setting
from qrun.ir import Node
from qrun.report.comparefiles import (
    Files,
    files_fields,
    files_sheet,
    recorded_fields,
    recorded_sheet,
)
from qrun.report.json import document
from qrun.report.screen import Out, Screen
from qrun.report.sheet import print_sheet

ODD = "a|b`c`[d](e)<f>&@g:h,i%j\x00\x1b[31m\nk\u202e\ud800\\_*[/bold]:x:"
A, B = Path("a.file"), Path("b.file")
SETTINGS = (Setting("model sha256", "1" * 64, "2" * 64), Setting(ODD, ODD, "-"))


def shown(
    found: Files, width: int | None = None, *, top: int | None = 10, quiet: bool = False, markdown: bool = False
) -> str:
    stream = io.StringIO()
    screen = Screen(stream, terminal=width is not None, width=width, color=False)
    out = Out(screen, screen, quiet)
    print_sheet(out, files_sheet(found, top), markdown)
    return stream.getvalue()


def archives(folder: Path) -> SavedArrays:
    rng = np.random.default_rng(0)
    arrays = {
        f"/model/layers.{n}/some/long/path/of/names/{n}": rng.integers(0, 255, (4, 4)).astype(np.uint8)
        for n in range(12)
    }
    np.savez(folder / "a.npz", **arrays, form=np.zeros(3), gone=np.zeros(1), same=np.zeros(1))
    np.savez(
        folder / "b.npz",
        **{k: v + np.eye(4, dtype=np.uint8) for k, v in arrays.items()},
        form=np.zeros(4),
        same=np.zeros(1),
    )
    return compare_npz(folder / "a.npz", folder / "b.npz", EXACT)


def records(name: str = ODD) -> RecordComparison:
    node = Node(3, "n", "", "QLinearConv", 10, ("x",), (name,))
    a = np.arange(100, dtype=np.uint8)
    b = a.copy()
    b[5] = 9
    f = np.float32([1, np.nan, 3])
    pairs = [(a, a), (a, b), (a, b.astype(np.int8)), (f, np.float32([1, 2, np.inf]))]
    changes = [
        judged(
            *(filled(RecordEntry.bare(name, x, node), x, node, None) for x in pair), Tolerance(), ((ODD, place == 1),)
        )
        for place, pair in enumerate(pairs)
    ]
    return RecordComparison(Path("rec"), ODD, "now 1.0", SETTINGS, Tolerance(), tuple(changes), (ODD,), ("new",))


def profiles() -> SavedProfiles:
    slower, few = Change(1.0, 2.0, "slower"), Change(0.0, 1.0, "few runs")
    nodes = (NodeChange(0, ODD, "Conv", few), NodeChange(7, "", "Add", slower, "stands for 2 nodes, before for 1"))
    return SavedProfiles(A, B, SETTINGS, slower, nodes, (Lone(1, ODD, "Pad", 0.1),), (Lone(2, "n", "Pad", 0.1),))


def runs() -> SavedArrays:
    first = ElementPair((1,), float("nan"), 1.0)
    odd = Difference(2, 1, float("inf"), (1,), (1,))
    pairs = (ArrayPair("same", "float32 [2]", "float32 [2]", True, Difference(2)),
             ArrayPair(ODD, "float32 [2]", "float32 [2]", False, odd, first, first, low=(0.0, 1.0)),
             ArrayPair("values left out", "float32 [2]", "float32 [2]", False, None),
             ArrayPair("far", "uint8 [9]", "int8 [9]", False, Difference(9, form=("uint8 [9]", "int8 [9]"))))  # fmt: skip
    return SavedArrays("runs", A, B, pairs, (ODD,), (), None, SETTINGS)


def checks() -> SavedChecks:
    finding = Found("m.onnx", "QR301", "scale-shape", "error", ODD, ODD, ODD)
    return SavedChecks(A, B, SETTINGS, (finding,), (finding, finding), 4, (("m.onnx", "set", "passed", "failed"),))


EVERY = ["archives", "records", "profiles", "runs", "checks"]


@pytest.fixture(params=EVERY)
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    made: dict[str, Any] = {"records": records, "profiles": profiles, "runs": runs, "checks": checks}
    return archives(tmp_path) if request.param == "archives" else made[request.param]()


def test_on_a_terminal(found: Files) -> None:
    for width in (80, 120):
        for line in shown(found, width).splitlines():
            assert len(line) <= width or " " not in line.strip(), line


def test_in_a_pipe(found: Files) -> None:
    text = shown(found)
    assert "│" not in text
    assert "\x1b" not in text
    assert "\x00" not in text
    text.encode()


def test_markdown(found: Files) -> None:
    """Every row of a table has its cells, and no name is markup outside code."""
    text = shown(found, markdown=True)
    assert text.startswith("### qrun compare: ")
    assert "\n\n\n" not in text
    assert "\x1b" not in text
    text.encode()
    outside = re.sub(r"(`+).*?\1", "", re.sub(r"\\.", "", text))
    assert not re.search(r"[<@\[]", outside)
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert tables
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_json_is_strict(found: Files) -> None:
    text = document("compare", [], files_fields(found))
    fields = json.loads(text, parse_constant=pytest.fail)
    assert fields["equal"] is found.equal
    assert fields["files"] in ("npz", "record", "profiles", "runs", "checks")


def test_quiet_is_the_verdict_only(found: Files) -> None:
    assert len(shown(found, quiet=True).splitlines()) == 1


def test_archives(tmp_path: Path) -> None:
    found = archives(tmp_path)
    text = shown(found, top=3)
    assert "differ: 13 of 14 arrays, first /model/layers.0/some/long/path/of/names/0; 1 array in one file only." in text
    assert "9 more arrays   --top all" in text
    assert "float64 [3]  float64 [4]" in text
    assert "Only in the first" in text
    every = shown(found, top=None)
    assert "more arrays" not in every
    assert "4 of 16" in every
    assert shown(compare_npz(tmp_path / "a.npz", tmp_path / "a.npz", EXACT)).startswith("equal: 15 arrays.\n")


def test_record_names_the_first_difference() -> None:
    text = shown(records("conv1"))
    assert "differ: first at node 3, conv1; 3 of 4 tensors with other bits." in text
    assert "uint8 [100]" in text
    assert "at least 1 element, one by at least 1 step\n" in text
    assert "equal bit for bit" in text
    assert "2" * 12 in text
    assert "2" * 13 not in text, "hashes are cut"
    fields = files_fields(records("conv1"))
    assert list(fields["tensors"][0]) == ["name", "node", "op", "verdict"]
    assert fields["tensors"][1]["recorded"]["sha256"] != fields["tensors"][1]["now"]["sha256"]
    assert {"min", "max", "mean"} <= fields["tensors"][1]["now"].keys()


def test_profile() -> None:
    text = shown(profiles())
    assert (
        "slower, more than the spread: 1.00 ms before, 2.00 ms after (+100.0%); 1 node slower, more than the " in text
    )
    assert "below 10 runs" in text
    assert "Add_7" in text
    in_order = shown(profiles(), top=None)
    assert in_order.index("Conv") < in_order.index("Add_7")


def test_profile_of_nodes_that_changed_while_the_run_did_not() -> None:
    same, faster = Change(1.0, 1.0, "same"), Change(2.0, 1.0, "faster")
    nodes = tuple(NodeChange(at, f"n{at}", "Conv", c) for at, c in enumerate((same, faster, faster)))
    text = shown(SavedProfiles(A, B, (), same, nodes, (), ()))
    assert text.startswith(
        "no change of the whole run beyond the spread: 1.00 ms before, 1.00 ms after (+0.0%); 2 nodes faster, more than the spread.\n"
    )
    assert "Nodes that changed most, by the change of the median\n" in text
    assert text.index("n1") < text.index("n0")


def test_record_that_cannot_tell() -> None:
    """Of 100 floats 16 are recorded, so others may be beyond the tolerance: that is no success."""
    node = Node(3, "n", "", "Relu", 10, ("x",), ("y",))
    a = np.linspace(1, 2, 100, dtype=np.float32)
    entries = [filled(RecordEntry.bare("y", x, node), x, node, None) for x in (a, a * np.float32(1 + 1e-6))]
    found = RecordComparison(Path("rec"), "a", "b", (), Tolerance(), (judged(*entries, Tolerance()),), (), ())
    assert not found.equal
    text = shown(found)
    assert "not decided: 1 of 1 tensor with other bits; the record cannot tell of 1 whether it is within" in text
    assert "no recorded fact is beyond the tolerance, but the other elements are not recorded" in text


def test_checks() -> None:
    text = shown(checks())
    assert "differ: 1 new and 2 gone of the findings; 1 vector with another status." in text


def test_recorded() -> None:
    stream = io.StringIO()
    screen = Screen(stream, terminal=False, width=None, color=False)
    made = Recorded(Path("rec"), 76, 88_367)
    print_sheet(Out(screen, screen), recorded_sheet(made))
    assert stream.getvalue() == "recorded 76 tensors in rec (88.4 kB)\n"
    assert recorded_fields(made) == {"record": {"path": "rec", "tensors": 76, "bytes": 88_367}}
