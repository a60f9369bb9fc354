"""Numbers, names and tables as people read them."""

from __future__ import annotations

import io
import json
import re
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qrun.io.inputs import Feeds
from qrun.report.grid import Column, Grid, grid_lines
from qrun.report.json import document
from qrun.report.markdown import escape, table
from qrun.report.nodes import common_prefix
from qrun.report.profile import ProfileReport, notes, verdict
from qrun.report.screen import BAD, Out, Screen
from qrun.report.sheet import Block, Sheet, print_sheet
from qrun.report.stats import stats, to_list, values_shown
from qrun.report.text import (
    bar,
    duration,
    file_size,
    number,
    ratio_text,
    safe,
    shorten,
    shorten_all,
    width_of,
    wrap,
)
from qrun.running.profiling import Profile, TimedRunner, measure_in_turns, outliers, profiled_runs, summary


@pytest.mark.parametrize(
    ("ns", "text"),
    [(5_210_000, "5.21 ms"), (41_800_000, "41.8 ms"), (212_000_000, "212 ms"), (1_204_000_000, "1.20 s"), (87_300, "87.3 us"),
     (0, "0.00 us"), (999_600, "1.00 ms"), (999_400, "999 us"), (9_996, "10.0 us"), (99_960, "100 us"), (3.6e12, "3600 s")],
)  # fmt: skip
def test_duration(ns: float, text: str) -> None:
    assert duration(ns) == text


def test_numbers() -> None:
    assert [number(v) for v in (17.0312, -6.41234, 0.0131, 1e-9, 0.0, -0.0, 255, True, None)] == [
        "17.03", "-6.412", "0.0131", "1e-09", "0", "-0", "255", "1", "-",
    ]  # fmt: skip
    assert [number(v) for v in (float("nan"), float("inf"), -float("inf"))] == ["nan", "inf", "-inf"]
    assert [file_size(n) for n in (0, 999, 1000, 3_600_000, 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "3.6 MB",
        "1000.0 GB",
    ]


def test_shorten_keeps_what_tells_names_apart() -> None:
    name = "features.10/conv/conv.0/conv.0.0/Conv_quant"
    assert shorten(name, 60) == name
    assert shorten(name, 40) == "features.10/…/conv.0/conv.0.0/Conv_quant"
    assert shorten(name, 30) == "features.10/…/Conv_quant"
    assert shorten("/" + name, 30) == "/features.10/…/Conv_quant"
    assert shorten("abcdefghijklmnop", 10) == "abc…klmnop"
    for width in range(12):
        for text in (name, "漢字" * 9, "a/b"):
            assert width_of(shorten(text, width)) <= width
            assert width_of(shorten(text, width, "...")) <= width


def test_safe() -> None:
    assert safe("a\x1b[0m\n\t\x85\u202e\u200b") == "a\\x1b[0m\\n\\t\\x85\\u202e\\u200b"
    assert safe("naïve …", "ascii") == "na\\xefve ..."
    assert safe("plain [/a] :x:") == "plain [/a] :x:"
    assert safe("\ud800") == "\\ud800"


def test_a_hostile_name_is_made_safe_in_little_memory() -> None:
    name = "\n" * 10**6
    for shown in (safe, escape):
        tracemalloc.start()
        text = shown(name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * sys.getsizeof(text), shown


def test_bar() -> None:
    assert bar(1, 4) == "████"
    assert bar(0.5, 3) == "█▌"
    assert bar(0, 4) == ""
    assert bar(0.5, 4, "ascii") == "##"


def test_shortened_names_stay_different() -> None:
    names = ["images_QuantizeLinear", "logits_DequantizeLinear", "images_DequantizeLinear", "logits_QuantizeLinear"]
    same_ends = [f"block{middle}_{'long' * 9}_out" for middle in range(12)]
    middles = [f"{'a' * 30}{middle}{'z' * 30}" for middle in range(30)]
    mixed = ["x" * 40, "xx…xx", "x" * 41, "x" * 42]
    for group in (names, same_ends, middles, mixed, ["漢字" * 20 + str(n) for n in range(5)]):
        for width in (8, 9, 14, 20):
            for ellipsis in ("…", "..."):
                shown = shorten_all([*group, group[0]], width, ellipsis)
                assert len(set(shown)) == len(group), (width, shown)
                assert shown[0] == shown[-1]
                assert all(width_of(text) <= width for text in shown), shown
    assert shorten_all(["a", "b"], 8) == ["a", "b"]


def test_wrap() -> None:
    assert wrap("x u8/i8, w u8", 8) == ["x u8/i8,", "w u8"]
    assert wrap("com.microsoft::QLinearAdd", 16) == ["com.microsoft::", "QLinearAdd"]
    assert wrap("abcdefgh", 3) == ["abc", "def", "gh"]
    assert wrap("", 5) == [""]
    for width in range(1, 9):
        assert "".join(wrap("u8/i8 f16/f32", width)).replace(" ", "") == "u8/i8f16/f32"


def test_a_place_in_a_finding() -> None:
    from qrun.checking.rules import Finding
    from qrun.report.message import print_findings

    def line(message: str, tensor: str, width: int | None = None) -> str:
        stream = io.StringIO()
        screen = Screen(stream, terminal=False, width=width, color=False)
        print_findings(screen, [Finding(message, "conv1", 0, "QLinearConv-10", tensor, rule="QR306")], "m.onnx", False)
        return stream.getvalue().rstrip()

    assert line("x_scale is nan", "s (input 1, x_scale)") == "  QR306 error    node 0 conv1: x_scale (tensor s) is nan"
    several = line("w_scale[3] is nan; 2 of 9 scales", "ws[3] (input 4, w_scale, read by 2 nodes)")
    assert several.endswith("w_scale[3] (tensor ws) is nan; 2 of 9 scales")
    assert line("bias B is float32", "b (input 8, B)").endswith("bias B (tensor b) is float32")
    assert line("x_scale is nan", "x_scale (input 1, x_scale)").endswith("conv1: x_scale is nan")
    assert line("50% of y saturates", "y (output)").endswith("conv1: 50% of y saturates")
    assert line("scale is off", "b s (1) (input 8, B)").endswith("scale is off (tensor b s (1))")
    assert line("bias scale 1", "bs, feeds Conv c").endswith("bias scale 1 (tensor bs)")
    assert line("nodes are not sorted", "").endswith("conv1: nodes are not sorted")
    for text in line("x_scale is nan", f"{'s' * 20} (input 1, x_scale)", 40).splitlines():
        assert len(text) <= 40


def test_grid_gives_way_in_order() -> None:
    columns = [
        Column("#", right=True),
        Column("name", shrink=1),
        Column("value", right=True),
        Column("more", optional=1),
    ]
    grid = Grid(columns, [["1", "n" * 30, "3.14", "m" * 10], ["10", "short", "2.7", ""]])
    lines = ["".join(text for text, _ in line) for line in grid_lines(grid)]
    assert lines[1] == "   1  " + "n" * 30 + "   3.14  " + "m" * 10
    assert lines[2].rstrip() == "  10  short" + " " * 25 + "    2.7"
    narrow = grid.fit(45, "…")
    assert [c.header for c in narrow.columns] == ["#", "name", "value"], "leaving out comes before shortening"
    assert narrow.rows[0][1] == "n" * 30
    narrow = grid.fit(30, "…")
    assert narrow.rows[0][1] == "n" * 6 + "…" + "n" * 10
    assert [row[2] for row in narrow.rows] == ["3.14", "2.7"]
    assert narrow.fits(30)
    assert not grid.fit(15, "…").fits(15), "below eight columns nothing is cut"
    wrapping = Grid([Column("a", shrink=1), Column("b", wrap=True)], [["n" * 20, "one, two, three, four"]])
    shown = wrapping.fit(38, "…")
    assert shown.rows == [["n" * 20, "one, two,\nthree, four"]], "wrapping comes before shortening"
    assert ["".join(text for text, _ in line) for line in grid_lines(shown)] == [
        "  a" + " " * 21 + "b", "  " + "n" * 20 + "  one, two,", " " * 24 + "three, four",
    ]  # fmt: skip
    assert table(Grid(columns[:2], [["1", "a|b`c\\d\ne_f"], ["2", ""]])) == [
        "| \\# | name |", "| ---: | --- |", r"| 1 | ``a\|b`c\d\ne_f`` |", "| 2 |  |",
    ]  # fmt: skip


def test_columns_go_before_wrapped_cells_grow_tall() -> None:
    reason = "values use 114 of 256 codes: step 0.118"
    grid = Grid(
        [Column("node"), Column("op", optional=1), Column("reason", wrap=True)],
        [["n" * 20, "o" * 20, reason], ["m", "p", "-"]],
    )
    shown = grid.fit(56, "…")
    assert [column.header for column in shown.columns] == ["node", "reason"]
    assert shown.rows[0][1] == "values use 114 of 256 codes:\nstep 0.118"
    assert len(grid.fit(62, "…").columns) == 3, "three lines are comfortable"
    only = grid.without(1).fit(30, "…")
    assert only.rows[0][1].count("\n") == 6, "nothing else can go"


def test_long_reasons_stand_below_their_rows() -> None:
    reason = "values use 114 of 256 codes: step 0.118, typical value 1.41"
    columns = [
        Column("#", right=True),
        Column("node", shrink=1),
        Column("op", optional=1),
        Column("reason", wrap=True, below=True),
    ]
    grid = Grid(columns, [["1", "n" * 20, "Conv", reason], ["2", "m", "Gemm", ""]], {(0, 3): "red", (0, 1): "green"})
    assert grid.fit(74, "…").rows[0][3].count("\n") == 1, "two lines are comfortable"
    shown = grid.fit(60, "…")
    assert [column.header for column in shown.columns] == ["#", "node", "op"], "what stands below makes room"
    assert shown.below == [
        ["    reason"],
        ["    values use 114 of 256 codes: step 0.118, typical value", "    1.41"],
        [],
    ]
    assert shown.styles == {(0, 1): "green"}
    assert shown.left_out == (), "what stands below is not left out"
    assert ["".join(text for text, _ in line) for line in grid_lines(shown, "─")] == [
        "  #  node                  op",
        "      reason",
        "  " + "─" * 29,
        "  1  nnnnnnnnnnnnnnnnnnnn  Conv",
        "      values use 114 of 256 codes: step 0.118, typical value",
        "      1.41",
        f"  2  m{' ' * 21}Gemm",
    ]


def test_columns_left_out_are_named_once_below_the_table() -> None:
    columns = [Column("node"), Column("p90", optional=2), Column("time", right=True), Column("roof", optional=1)]
    for width, told in ((None, []), (40, []), (33, ["p90"]), (22, ["p90, roof"])):
        stream = io.StringIO()
        Screen(stream, terminal=True, width=width, color=False).grid(
            Grid(columns, [["n" * 8, "p" * 8, "1 us", "r" * 8]])
        )
        head, rule, _, *more = stream.getvalue().splitlines()
        assert " ".join("".join(more).split()) == "".join(f"wider terminal or --json: {left}" for left in told)
        assert set(rule) == {" ", "─"}
        assert "time" in head


def test_legends_are_of_columns_that_are_shown() -> None:
    def drawn(width: int | None, markdown: bool = False) -> str:
        stream = io.StringIO()
        screen = Screen(stream, terminal=False, width=width, color=False)
        both = [Column("node"), Column("roof", optional=1)]
        blocks = [
            Block("Wide", Grid(both, [["n" * 25, "5%"]]), legends={"roof": "share of all"}, lines=["line"]),
            Block("Thin", Grid(both, [["n", "5%"]]), legends={"roof": "share of all", "other": "nowhere"}),
        ]
        print_sheet(Out(screen, screen), Sheet(blocks), markdown)
        return stream.getvalue()

    assert drawn(None).count("share of all") == drawn(None, True).count("share of all") == 1
    assert drawn(None).index("share of all") < drawn(None).index("line")
    assert drawn(30).index("share of all") > drawn(30).index("Thin")
    assert "nowhere" not in drawn(None)
    assert "share of all" not in drawn(8)


def test_common_prefix() -> None:
    assert common_prefix(["/a/b/c", "/a/b/d"]) == "/a/b/"
    assert common_prefix(["/a/b", "/a/b/d"]) == "/a/"
    assert common_prefix(["ab", "ac"]) == ""
    assert common_prefix(["/a/b"]) == ""
    assert common_prefix(["/x", "/y"]) == ""


def test_stats() -> None:
    s = stats(np.array([[1.0, np.nan, -np.inf, 4.0]], np.float32))
    assert (s.low, s.high, s.mean, s.argmax, s.nan, s.inf) == (-np.inf, 4.0, 2.5, (3,), 1, 1)
    assert stats(np.full(3, np.nan)).nan == 3
    assert s.rows is None
    rows = np.array([[1, 3, 2], [9, 0, 0], [0, 0, 1]])
    assert stats(rows.astype(np.int8)).rows == stats(rows.astype(np.float32)).rows == (1, 0, 2)
    assert stats(rows.reshape(3, 1, 3, 1)).rows == (1, 0, 2)
    assert stats(np.array([[np.nan, 1, 2], [np.nan] * 3])).rows == (2, None)
    assert stats(np.zeros((2, 2, 2))).rows is None
    assert stats(np.zeros(0)).low is None
    s = stats(np.full(70000, 65504, np.float16))
    assert (s.mean, s.nan, s.inf) == (65504.0, 0, 0)
    s = stats(np.array(7, np.int64))
    assert (s.low, s.argmax) == (7, (0,))
    assert stats(np.array([2**63 + 1], np.uint64)).high == 2**63 + 1
    assert values_shown(np.arange(40))[3] == "…"
    assert to_list(np.arange(65), 64) is None
    assert to_list(np.array(3.5), 64) == 3.5


def test_document_is_strict() -> None:
    text = document("run", ["a\ud800"], {"x": [float("nan"), {"y": -float("inf")}], "z": 1.5})
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert found["x"] == ["nan", {"y": "-inf"}]
    assert found["schema"] == "qrun/run/1.0"


def test_outliers_are_those_of_hyperfine() -> None:
    steady = [40_000_000 + 100_000 * (i % 7) for i in range(50)]
    assert outliers(steady) == []
    assert outliers([61_300_000, *steady]) == [0]
    assert outliers([1000] * 9 + [1500]) == [], "below what a clock tells apart"
    assert outliers([5]) == []
    s = summary([1, 2, 3, 4, 100])
    assert (s.median, s.low, s.high, s.mean) == (3, 1, 100, 22)
    assert summary([5]).deviation is None


def timed(run: Any, *how: Any) -> Profile:
    (profile,) = measure_in_turns([TimedRunner(profiled_runs(run), None)], *how)  # type: ignore[arg-type]
    return profile


def test_measure_stops_at_ctrl_c() -> None:
    """Of the runs in a row that it interrupts none counts."""
    calls = []

    def run() -> SimpleNamespace:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return SimpleNamespace(duration_ns=10, events=[])

    profile = timed(run, 100, 1, 3.0)
    assert profile.interrupted
    assert len(profile.run_ns) == 1
    calls[:] = [1, 1, 1]
    with pytest.raises(KeyboardInterrupt):
        timed(run, 100, 0, 3.0)


def test_number_of_runs() -> None:
    def run() -> SimpleNamespace:
        return SimpleNamespace(duration_ns=10, events=[])

    assert 5 <= len(timed(run, None, 0, 0.0).run_ns) < 1000
    assert len(timed(run, None, 0, 30.0).run_ns) == 1000
    assert len(timed(run, 3, 2, 0.0).warmup_ns) == 2


def test_wrapping_keeps_words() -> None:
    stream = io.StringIO()
    screen = Screen(stream, terminal=False, width=20, color=False)
    screen.wrapped("  = ", "    ", "one two three four five six")
    assert stream.getvalue() == "  = one two three\n    four five six\n"


def test_wrapping_keeps_styles() -> None:
    def drawn(width: int | None, color: bool) -> str:
        stream = io.StringIO()
        Screen(stream, terminal=False, width=width, color=color).wrapped("= ", "  ", ("error", "bold"), " one  two ", ("three four", "red"), " five")  # fmt: skip
        return stream.getvalue()

    assert drawn(None, False) == "= error one  two three four five\n"
    assert drawn(18, False) == "= error one  two\n  three four five\n"
    assert drawn(16, False) == "= error one  two\n  three four\n  five\n"
    assert drawn(12, True) == ("= \x1b[1merror\x1b[0m one\n  two \x1b[31mthree\x1b[0m\n  \x1b[31mfour\x1b[0m five\n")


def test_what_is_to_be_typed_stays_on_one_line() -> None:
    def drawn(width: int | None) -> str:
        stream = io.StringIO()
        Screen(stream, terminal=False, width=width, color=False).wrapped("= ", "  ", "a sum of many   --top all")
        return stream.getvalue()

    assert drawn(None) == drawn(27) == "= a sum of many   --top all\n"
    assert drawn(26) == drawn(15) == "= a sum of many\n  --top all\n"
    assert drawn(10) == "= a sum of\n  many\n  --top\n  all\n"


def test_a_sheet_begins_with_its_verdict() -> None:
    def drawn(quiet: bool = False, markdown: bool = False) -> str:
        stream = io.StringIO()
        screen = Screen(stream, terminal=False, width=None, color=not markdown)
        grid = Grid([Column("a")], [["1"]])
        sheet = Sheet(
            [Block("Table", grid, lines=["x=[1]"], more="2 more   --all")],
            "differ: much.",
            BAD,
            about=["a_b"],
            notes=["n"],
        )
        print_sheet(Out(screen, screen, quiet), sheet, markdown)
        return stream.getvalue()

    assert drawn(quiet=True) == "\x1b[1;31mdiffer:\x1b[0m much.\n"
    plain = re.sub(r"\x1b\[[\d;]*m", "", drawn())
    assert plain == "differ: much.\n\na_b\n\nTable\n  a\n  1\n  x=[1]\n  … 2 more   --all\n\nnote: n\n"
    assert drawn(markdown=True).splitlines()[:5] == ["### qrun compare: differ: much.", "", "a\\_b", "", "**Table**"]


def test_nodes_that_were_held_up_in_other_runs_are_told() -> None:
    ms = 10**6
    profile = replace(measured([11] * 3), node_ns=np.array([[9, 1, 1], [1, 9, 1], [1, 1, 9]], np.int64) * ms)
    (note,) = notes(ProfileReport(profile, Feeds(), 0, "reference", "exact"))
    assert "the nodes' medians add up to 3.00 ms, but the nodes of one run take 11.0 ms" in note
    assert profile.overhead_ns is None


def test_nodes_that_take_longer_than_plain_runs_are_told() -> None:
    profile = measured([10] * 20, share=1.2)
    (note,) = notes(ProfileReport(profile, Feeds(), 0, "reference", "exact"))
    assert "the nodes' medians add up to 12.0 ms, but a plain run takes 10.0 ms" in note


def test_a_thread_without_a_processor_is_told() -> None:
    """All runs are equally slow: their spread shows nothing."""
    profile = replace(measured([53] * 20), on_ns=20 * 2_000_000)
    (note,) = notes(ProfileReport(profile, Feeds(), 0, "reference", "exact"))
    assert "the machine is busy, or its clock varies: the calling thread was not running for 96.2 % of the time" in note
    assert not notes(ProfileReport(replace(profile, on_ns=20 * 52_000_000), Feeds(), 0, "reference", "exact"))


def measured(runs: Sequence[int], share: float = 0.5) -> Profile:
    """Plain runs of these ms; the one node takes a share of each."""
    model, result = SimpleNamespace(nodes=[1]), SimpleNamespace(duration_ns=0, events=[])
    times = (np.array([runs], np.int64) * share * 1_000_000).astype(np.int64)
    return Profile(model, (), tuple(ms * 10**6 for ms in runs), times, result, profiled_ns=(10**9,))  # type: ignore[arg-type]


def against(mine: Sequence[int], others: Sequence[int]) -> ProfileReport:
    return ProfileReport(measured(mine), Feeds(), 0, "native", "exact", against=measured(others), other="onnxruntime 1")


def test_one_note_for_a_busy_machine() -> None:
    busy = [10] * 30 + [40] * 20
    told = [note for note in notes(against(busy, busy)) if "busy" in note or "runs (-n)" in note]
    assert len(told) == 1, told
    assert told[0].count("p90 is 4.0 x the median") == 2
    assert "qrun: " in told[0]
    assert "onnxruntime: " in told[0]
    few = [note for note in notes(against([*[10] * 99, 90], [10] * 100)) if "busy" in note]
    assert not few, "an interrupt, as a quiet machine has them"
    cold = notes(against([90, *[10] * 30], [10] * 31))
    assert [note for note in cold if "--warmup" in note]
    assert not [note for note in cold if "busy" in note]


@pytest.mark.parametrize(
    ("mine", "others", "start"),
    [
        (range(10, 20), range(30, 40), "qrun 14.5 ms, onnxruntime 34.5 ms a run: 2.38x as fast."),
        (range(30, 40), range(10, 20), "qrun 34.5 ms, onnxruntime 14.5 ms a run: onnxruntime is 2.38x as fast."),
        (range(10, 20), range(14, 24), "inconclusive: the interquartile ranges overlap; qrun 14.5 ms"),
        (range(10, 19), range(30, 39), "inconclusive: 10 runs or more are needed (-n); qrun 14.0 ms"),
    ],
)
def test_who_is_faster_only_beyond_the_spread(mine: range, others: range, start: str) -> None:
    line = verdict(against(mine, others))
    assert line.startswith(start)
    low = f"minima {duration(mine[0] * 10**6)} and {duration(others[0] * 10**6)}"
    assert (low in line) == line.startswith("inconclusive")


def test_a_path_that_is_cut_keeps_its_layer() -> None:
    norm = "/model/layers.12/input_layernorm/SimplifiedLayerNormalization"
    assert shorten(norm, 24) == "…/layers.12/…rmalization"
    assert shorten("/encoder/layer1/conv/Conv_of_a_long_name_that_does_not_fit", 20).startswith("/")


def test_names_are_cut_in_one_way_where_that_tells_them_apart() -> None:
    names = ["first/of/all/model.onnx", "second_of_a_longer_name/model.onnx", "second_of_another_name/model.onnx"]
    shown = shorten_all(names, 26)
    assert len(set(shown)) == 3
    assert all(name.endswith("/model.onnx") for name in shown), shown


def test_small_ratios_have_two_digits() -> None:
    assert [ratio_text(r) for r in (10.216, 0.5, 0.0982, 0.0033, 0.000271)] == [
        "10.22",
        "0.50",
        "0.098",
        "0.0033",
        "0.00027",
    ]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("color", [False, True])
def test_colours_that_are_forced_into_a_pipe_are_the_standard_ones(color: bool, terminal: bool) -> None:
    console = Screen(io.StringIO(), terminal=terminal, width=80, color=color).console
    if not (color and terminal):  # a terminal says itself how many it has
        assert console.color_system == ("standard" if color else None)
    assert console.no_color is not color
