"""The HTML page as text: what is in it, that names cannot break out of it, and that nothing in it changes by itself."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files

import jsonschema
import pytest
from helpers.page import (
    DATE,
    Read,
    check,
    collected,
    finding,
    full_page,
    models,
    node,
    pair,
    profile,
    runtimes,
    tensor,
)

from qrun.documents.answers import ProfileNode
from qrun.documents.record import Item
from qrun.errors import CallError
from qrun.report.html.collect import MOST, PageContent, page_of
from qrun.report.html.graph import FEWEST, Place, between, layout, members
from qrun.report.html.page import html
from qrun.report.text import safe

SCHEMA = json.loads(files("qrun").joinpath("schemas/report-1.0.json").read_text())
ODD = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '" onclick="alert(1)',
    "'><img src=x onerror=alert(1)>",
    "&lt;b&gt;&amp;",
    "[/backbone/conv1] :x: {0} %s",
    "emoji \U0001f600 \U0001f469\u200d\U0001f4bb",
    "a\nb\tc\rd",
    "nul\x00 bell\x07 escape\x1b[31m",
    "right\u202eleft \u2028 end",
    "\ud800 lone",
    "<!-- ",
    "]]>",
    "x" * 300,
    " ",
    "…",
]


def named(name: str) -> PageContent:
    """A page with this text wherever a file's own words go."""
    return collected(
        profile=profile(
            [node(0, name=name, op=name), node(1)],
            model={"path": name, "opsets": {name: 1}},
            inputs=[{"name": name, "type": "uint8", "shape": [1], "source": name}],
            notes=[name],
            machine={
                "cpu": name,
                "instruction": name,
                "threads": 1,
                "int8": 1e11,
                "float32": 0,
                "memory": [[1 << 20, 1e10]],
            },
        ),
        check=check(
            [
                finding(message=name, node=name, tensor=name, why=name, fix=name, rule=name, name=name),
                finding(message="other", node=name, tensor=name, why=name, rule=name),
            ],
            path=name,
        ),
        quantization={"tensors": [tensor(name=name, type=name)]},
        compare=runtimes(pair(name=name, op=name, type=name, by_itself={"cause": name, "text": name}), refused=name),
    )


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_no_name_breaks_out(name: str) -> None:
    text = html(named(name))
    read = Read(text)
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in Read(html(named("q"))).elements]
    assert [row[1] for row in read.table("ran by") if row[0] == "0"] == [safe(name)]
    assert read.data["documents"] == named(name).data
    assert read.table("details")[1][1] == safe(name)
    accuracy = Read(html(collected(compare=models(name))))
    assert [tag for tag, _ in accuracy.elements] == [
        tag for tag, _ in Read(html(collected(compare=models("q")))).elements
    ]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", text)


def test_the_same_bytes_twice() -> None:
    assert full_page() == full_page()
    assert DATE in full_page()


def test_nothing_is_loaded() -> None:
    read = Read(full_page())
    assert not {tag for tag, _ in read.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "image",
        "use",
    }
    for tag, attributes in read.elements:
        assert not {"src", "srcset", "action", "data", "background"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
        href = attributes.get("href") or "#"
        assert href.startswith("#") or (tag == "a" and href.startswith("https://")), href
    assert "url(" not in full_page()
    assert "@import" not in full_page()


def test_the_policy_allows_this_script_only() -> None:
    text = full_page()
    read = Read(text)
    policy = next(a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';")
    assert "img-src" not in policy


def test_the_outline_is_in_order() -> None:
    text = full_page()
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    read = Read(text)
    headings = re.findall(r"<h2[^>]*>([^<]*)", text)
    assert headings == ["Checks", "Time, in graph order", "Graph", "Slowest nodes", "Roofline", "Quantization", "Rules"]
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    targets = [a["href"][1:] for _, a in read.elements if (a.get("href") or "").startswith("#")]
    assert set(targets) <= set(ids)
    assert {"findings", "n0", "n3", "QR301"} <= set(targets)
    assert all(a.get("scope") == "col" for tag, a in read.elements if tag == "th")
    assert all(a.get("aria-label") for tag, a in read.elements if tag == "svg" and a.get("role") == "img")


def test_the_header_and_the_big_numbers() -> None:
    text = " ".join(Read(full_page()).texts)
    assert "opset ai.onnx 13; 6 nodes" in text
    assert "9f" * 32 in text
    assert "image float32 [1,3,224,224] from x.npy (N=1)" in text
    assert "qrun report m.onnx" in text
    assert "2 errors" in text
    assert "41.6 ms median of 68 runs, p90 44.0 ms" in text
    assert "200 M multiply-adds a run, 1.0 MiB of live tensors" in text


def test_findings_of_a_rule_are_said_once() -> None:
    text = html(
        collected(check=check([finding(), finding(index=3, node="b", got="[4]"), finding(level="note", rule="QR402")]))
    )
    assert text.count("one scale for each channel") == 2 + 3, "for each of the two rules, and three times in the data"
    read = Read(text)
    assert read.table("what")[0] == ["node", "what", "got"]
    assert [row[2] for row in read.table("what")[1:]] == ["[3]", "[4]"]
    assert [row[0] for row in read.table("what")[1:]] == ["#0 /stem/conv (QLinearConv-10)", "#3 b (QLinearConv-10)"]
    assert text.index("2 errors") < text.index("1 note")
    assert 'href="#n' not in text, "there are no rows of nodes to lead to"


def test_rules_are_explained() -> None:
    text = full_page()
    assert re.search(r'<details id="QR301"><summary><b>QR301</b> scale-shape', text)
    assert "QLinearConv" in text[text.index('<details id="QR301">') :]


def test_no_check_is_not_no_finding() -> None:
    text = html(collected(profile=profile([node(0)])))
    assert "no findings" not in text
    assert "no findings" in html(collected(profile=profile([node(0)]), check=check([])))


def test_nodes_come_slowest_first() -> None:
    rows = Read(full_page(30)).table("ran by")
    assert rows[0] == ["#", "node", "op", "median", "p90", "share", "GMAC/s", "roof", "ran by", "moved", "output"]
    assert sorted(int(row[0]) for row in rows[1:]) == list(range(30))
    times = [float(row[3].removesuffix(" ms")) for row in rows[1:]]
    assert times == sorted(times, reverse=True)
    marked = [attrs for name, attrs in Read(full_page(30)).elements if name == "th" and attrs.get("aria-sort")]
    assert [attrs["aria-sort"] for attrs in marked] == ["descending"]
    first = next(row for row in rows if row[0] == "0")
    assert first[1:3] == ["/features/0/conv/Conv_quant", "QLinearConv"]
    assert first[3:5] == ["1.00 ms", "1.10 ms"]
    assert first[6:] == ["100.0", "40 % compute", "native y32", "976.6 KiB", "uint8 [1,96,56,56]"]
    assert sum(float(row[5].rstrip("%")) for row in rows[1:]) == pytest.approx(100, abs=2)


def test_the_slowest_of_many_nodes() -> None:
    nodes = [node(n) for n in range(MOST + 300)]
    text = html(collected(profile=profile(nodes)))
    rows = Read(text).table("ran by")[1:]
    assert len(rows) == MOST
    assert f"slowest {MOST:,} of {MOST + 300:,} nodes" in text
    places = [int(row[0]) for row in rows]
    assert len(set(places)) == MOST
    left = set(range(MOST + 300)) - set(places)
    assert max(nodes[n]["median_ms"] for n in left) <= min(nodes[n]["median_ms"] for n in places)
    assert "other nodes" in text, "the strip has all of the time"


def shown(text: str, start: str, end: str) -> str:
    """What a reader sees between two pieces of markup."""
    return " ".join(Read(f"<p>{text.partition(start)[2].partition(end)[0]}</p>".replace("<dl>", "")).texts)


def test_the_answer_comes_first() -> None:
    """Before any number, and in the words of the terminal."""
    found = collected(profile=profile([node(n) for n in range(6)]), check=check([finding()]), compare=runtimes(pair()))
    text = html(found)
    first = text.index('class="verdict"')
    assert text.index("<h1>") < first < text.index('class="tiles"')
    said = " ".join(shown(text, 'class="verdict">', "</p>").split())
    assert said.startswith("Differs first at node 1, y (float32-multiplier), against onnxruntime 1.32.0.")
    assert "1 error , first QR301 scale-shape." in said
    assert "41.6 ms a run; " in said
    good = html(collected(compare=runtimes(equal=True), check=check([])))
    assert "Equal : bit for bit, 0 tensors" in shown(good, 'class="verdict">', "</p>")
    assert "Nothing found by 2 rules." in shown(good, 'class="verdict">', "</p>").replace("found  by", "found by")


def test_metadata_is_folded_away() -> None:
    text = full_page()
    folded = text.partition('class="about-page">')[2].partition("</details>")[0]
    assert folded.startswith("<summary>opset ai.onnx 13")
    assert "sha256" in folded
    assert "<dl>" not in text.partition('class="about-page">')[0]


def test_where_the_difference_begins() -> None:
    found = runtimes(
        pair(name="fine", equal=True, identical=True),
        pair(
            name="here",
            node=4,
            label="Conv_4",
            where=[0, 1, 2],
            a=11,
            b=10,
            inputs_equal=True,
            by_itself={"cause": "tie-rounding", "text": "ties go up", "before_rounding": 10.5},
        ),
        pair(name="later", node=5, by_itself=None),
        first={"node": 4, "tensor": "here", "origin": None},
    )
    block = shown(html(collected(compare=found)), "<h3>First difference</h3>", "</dl>")
    for words in (
        "#4 Conv_4",
        "3 of 200 elements",
        "[0,1,2]  qrun 11   ort 10   before rounding 10.5",
        "equal bit for bit",
        "tie-rounding: ties go up",
    ):
        assert words in block
    assert "First difference" not in html(collected(compare=runtimes(equal=True)))


def test_the_list_to_keep_in_float_is_whole_and_has_decibels() -> None:
    kept = {
        "count": 2,
        "nodes": ["a", "b"],
        "exclude": ["a", "b", "after"],
        "readers": ["after"],
        "runs": 1,
        "reached": True,
        "tried": [{"nodes": 1, "output_sqnr_db": 37.7}, {"nodes": 2, "output_sqnr_db": 40.14}],
    }
    read = Read(html(collected(compare={**models(), "keep_in_float": kept})))
    assert 'nodes_to_exclude=["a", "b", "after"]' in read.texts
    assert read.table("nodes in float")[1:] == [["1", "37.7 dB"], ["2 (this list)", "40.1 dB"]]


def test_outputs_of_the_run() -> None:
    told = {
        "name": "y",
        "type": "float32",
        "shape": [2, 3],
        "min": -1.5,
        "max": 2.0,
        "mean": 0.25,
        "nan": 1,
        "inf": 2,
        "argmax": [0, 1],
        "argmax_rows": [1, 2],
        "sha256": "9f" * 32,
        "values": [],
    }
    rows = Read(html(collected(outputs={"outputs": [told]}, profile=profile([node(0)])))).table("argmax")
    assert rows[1] == ["y", "float32", "[2,3]", "-1.5", "2", "0.25", "1,2 per row", "1/2"]


def row(index: int, *group: int, step: tuple[int, ...] = ()) -> ProfileNode:
    return ProfileNode(index, f"n{index}", op="Add", group=group, median_ms=1.0 + index, step=step)


def test_the_graph_is_that_of_the_rows() -> None:
    """Nodes that ran as one are one box, and what has no row is looked through, or has several."""
    rows = [row(0), row(3, 2, 3, 4), row(6, 2, 6, 7), row(9), row(20)]
    edges = [(0, 1), (1, 2), (2, 3), (2, 6), (3, 4), (6, 7), (4, 8), (7, 8), (8, 9), (30, 31)]
    assert between(members(rows), edges) == {0: (), 3: (0,), 6: (0,), 9: (3, 6)}
    joined = [row(0), row(1), row(2, step=(1, 2)), row(3)]
    assert between(members(joined), [(0, 1), (1, 2), (2, 3)]) == {0: (), 2: (0,), 3: (2,)}, "a step is one box"


def test_boxes_stand_behind_what_they_read() -> None:
    links = {0: (), 1: (0,), 2: (0,), 3: (1, 2), 4: (3, 5), 5: ()}
    places = layout(links)
    assert [places[n].layer for n in range(6)] == [0, 1, 1, 2, 3, 2]
    assert len({(p.line, p.layer, p.lane) for p in places.values()}) == 6
    short = layout({n: (n - 1,) if n else () for n in range(2 * FEWEST)})
    assert [short[n] for n in (0, FEWEST - 1, FEWEST)] == [Place(0, 0, 0), Place(0, FEWEST - 1, 0), Place(1, 0, 0)]
    long = layout({n: (n - 1,) if n else () for n in range(1000)})
    assert max(p.layer for p in long.values()) < 100, "a long chain is not one line"
    assert len(layout({0: (1,), 1: (0,)})) == 2, "a circle in a damaged file ends too"


def test_the_boxes_of_the_graph() -> None:
    """Each has its name, time and SQNR, the colours of both, the boxes that it reads, and a link to its row."""
    nodes = [node(n, name=f"layer{n}", median_ms=t) for n, t in enumerate((1.0, 10.0, 3.0, 0.01))]
    graph = {"edges": [[0, 1], [1, 2], [2, 3]]}
    noisy = runtimes(pair(node=2, sqnr_db=25.0), pair(node=3, sqnr_db="inf"))
    text = html(collected(profile=profile(nodes), graph=graph, compare=noisy))
    (drawn,) = re.findall(r'<svg class="map".*?</svg></a></svg>', text, re.S)
    boxes = re.findall(r'<a href="#n(\d)" class="t(\d) s(\d)" data-reads="(\d?)">', drawn)
    assert boxes == [("0", "2", "4", ""), ("1", "0", "4", "0"), ("2", "1", "1", "1"), ("3", "4", "4", "2")]
    assert re.findall(r"<text>(layer\d|[\d.]+ (?:ms|us|dB))</text>", drawn) == [
        "layer0", "1.00 ms", "layer1", "10.0 ms", "layer2", "3.00 ms", "25.0 dB", "layer3", "10.0 us"
    ]  # fmt: skip
    assert "t2 uint8 [1,96,56,56] · SQNR 25.0 dB</title>" in drawn, "the tensor"
    assert "<option" in text
    assert "<option" not in html(collected(profile=profile(nodes), graph=graph)), "there is no SQNR to colour by"
    assert 'class="map"' not in html(collected(profile=profile(nodes)))


def test_times_of_another_runtime_stand_beside() -> None:

    def group(nodes: list[int], mine: list[int], others: list[int], *times: float | None) -> dict[str, object]:
        a, b, ratio = times
        return {"nodes": nodes, "name": "", "op": "", "folded": not (mine or others), "median_ms": a, "other_ms": b,
                "ratio": ratio, "events": mine, "other_events": others}  # fmt: skip

    plain = {"macs": 0, "roof_share": None}
    own = [node(n, name="abc"[n], op=op, **plain) for n, op in enumerate(("Conv", "Add", "Relu"))]
    other = [
        {**node(0, **plain), "name": name, "op": op, "ran_by": f"ort {op}", "median_ms": time, "inserted": new}
        for name, op, time, new in (("a", "Conv", 2.5, False), ("Reorder", "Reorder", 0.1, True))
    ]
    own[0]["median_ms"], own[1]["median_ms"], own[2]["median_ms"] = 1.0, 3.0, 1.0
    groups = [group([], [], [1], None, 0.1, None), group([0], [0], [0], 1.0, 2.5, 2.5),
              group([1, 2], [1, 2], [], 4.0, None, None), group([3], [], [], None, None, None)]  # fmt: skip
    run = {"median_ms": 52.0, "min_ms": 50.0}
    against = {"runtime": "onnxruntime 1.32.0", "verdict": "faster", "run": run, "nodes": other, "groups": groups}
    text = html(collected(profile=profile(own, against=against)))
    assert "qrun 41.6 ms, onnxruntime 52.0 ms a run: 1.25x as fast." in text
    rows = Read(text).table("ort/qrun")
    assert rows[0] == ["#", "node", "op", "qrun", "ort", "ort/qrun", "in onnxruntime"]
    assert rows[1:] == [
        ["1", "b", "Add +1", "4.00 ms", "-", "-", "-"],
        ["0", "a", "Conv", "1.00 ms", "2.50 ms", "2.50", "ort Conv"],
        ["-", "Reorder (inserted)", "Reorder", "-", "100 us", "-", "ort Reorder"],
    ]
    groups[0]["other_events"] = [7]
    with pytest.raises(CallError, match="is not a valid qrun result"):
        collected(profile=profile(own, against=against))
    assert "Beside onnx" not in html(collected(profile=profile([node(0)])))


def test_slopes_are_named_after_caches() -> None:
    memory = [[1 << 14, 4e11], [1 << 17, 2e11], [1 << 20, 1.5e11], [1 << 23, 9e10], [1 << 26, 4e10]]
    machine = {"cpu": "a CPU", "threads": 1, "instruction": "vpdpbusd", "int8": 4e11, "float32": 1e11, "memory": memory}
    nodes = [node(n, macs=10**8, gmacs=10.0 + n, bytes=10**6 * (1 + 30 * n)) for n in range(5)]
    text = html(collected(profile=profile(nodes, machine=machine)))
    plot = text.partition('class="plot"')[2].partition("</figure>")[0]
    assert re.findall(r">(L\d|RAM)</text>", plot) == ["L1", "L2", "L3", "RAM"]


def test_the_strip_is_as_wide_as_the_time() -> None:
    text = full_page(30)
    strip = text[text.index('class="strip"') :]
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%"', strip[: strip.index("</svg>")])]
    assert len(widths) == 30
    assert sum(widths) == pytest.approx(100, abs=30 * 0.06)
    times = [node(n)["median_ms"] for n in range(30)]
    assert widths == pytest.approx([100 * t / sum(times) for t in times], abs=0.06)


def test_the_strip_ends_where_a_plain_run_does() -> None:
    """What the nodes' medians leave of a plain run is there as well; shares are parts of the nodes."""
    nodes = [node(0, median_ms=2.0), node(1, median_ms=1.0)]
    profiled = {"profiled_run": {"median_ms": 5.0, "samples_ms": [5.0]}}
    text = html(collected(profile=profile(nodes, run={"median_ms": 4.0, "samples_ms": [4.0]}, **profiled)))
    strip = text[text.index('class="strip"') :].partition("</svg>")[0]
    assert [float(w) for w in re.findall(r'width="([\d.]+)%"', strip)] == pytest.approx([50, 25, 25], abs=0.06)
    assert 'class="rest"' in strip
    assert "call overhead 1.00 ms" in strip
    assert "<span>0</span><span>time of a run</span><span>4.00 ms</span>" in text
    assert [row[5] for row in Read(text).table("ran by")[1:]] == ["66.7 %", "33.3 %"]
    alone = html(collected(profile=profile(nodes, run={"median_ms": 3.0, "samples_ms": [3.0]})))
    assert "rest" not in alone.partition("<svg")[2].partition("</svg>")[0]


def test_a_node_without_a_name_is_called_as_on_the_screen() -> None:
    text = html(collected(profile=profile([node(4, name="", op="MaxPool")])))
    assert Read(text).table("ran by")[1][1] == "MaxPool_4"
    assert "#4 MaxPool_4, MaxPool" in text


def test_the_roofline_has_a_dot_for_each_node_with_products() -> None:
    text = full_page(30)
    assert text.count("<circle") == 10
    assert "20 nodes without multiply-adds are not shown" in text
    assert "int8 vpdpbusd 200 GMAC/s" in text
    assert re.search(r'y="-6" text-anchor="end">int8', text), "no dots are above a roof, and many are just below"
    without = html(collected(profile=profile([node(0)], machine=None)))
    assert "<circle" in without
    assert "Roofline" not in html(collected(profile=profile([node(1)])))


def test_many_tensors() -> None:
    tensors = [tensor(name=f"t{n}") for n in range(MOST + 1)]
    text = html(collected(quantization={"tensors": tensors}))
    assert len(Read(text).table("zero point")) == 1 + MOST
    assert f"The first {MOST:,} of {MOST + 1:,} tensors" in text


def test_quantized_tensors() -> None:
    row = Read(full_page()).table("zero point")[2]
    assert row[:2] == ["0", "t1"]
    assert row[3:] == ["activation", "uint8 [1,8]", "0.02", "3", "0 … 255", "-0.06 … 5.04", "12.50 %", "25.00 %"]


@pytest.mark.parametrize("odd", [None, ["nan", "nan"], [0, "inf"], [1], []])
@pytest.mark.parametrize("key", ["scale", "zero_point", "used", "limits"])
def test_parameters_that_are_no_numbers(key: str, odd: object) -> None:
    row = Read(html(collected(quantization={"tensors": [tensor(**{key: odd})]}))).table("zero point")[1]
    place = {"scale": 5, "zero_point": 6, "used": 7}.get(key)
    assert place is None or row[place] == "-"


def test_histogram_marks_the_ends() -> None:
    def svg(**more: object) -> str:
        text = html(collected(quantization={"tensors": [tensor(**more)]}))
        return re.findall(r'<svg class="h".*?</svg>', text)[0]

    assert svg().count('class="e"') == 2
    assert svg(zero_point=[0, 0]).count('class="z"') == 1
    assert 'class="e"' not in svg(at_low=0, at_high=0)
    assert "NaN" not in svg(bins=[0, 0], at_low=0, at_high=0, used=None)
    assert svg(kind="weight").count('class="z"') == 2, "the largest weight is what the scale is made for"


def test_histogram_is_of_elements_per_code() -> None:
    record = tensor(bins=[62, 128, 64], bin_codes=[31, 64, 32], at_low=2, at_high=2)
    (svg,) = re.findall(r'<svg class="h".*?</svg>', html(collected(quantization={"tensors": [record]})))
    heights = [int(height) for height in re.findall(r"V(\d+)h", svg)]
    assert len(set(heights)) == 1, "the same share of each code"
    assert svg.count("v-22h3") == 2, "and of the limits"


def test_a_small_share_is_not_none() -> None:
    row = Read(html(collected(quantization={"tensors": [tensor(size=10**6, at_low=1, at_high=0)]}))).table(
        "zero point"
    )[1]
    assert row[9:] == ["<0.01 %", "0"]


def test_two_runtimes() -> None:
    same = pair(name="a", identical=True, equal=True, differing=0)
    close = pair(name="c", equal=True, differing=0)
    read = Read(
        html(
            collected(
                profile=profile([node(0)]),
                compare=runtimes(same, close, pair(node=None), pair(name="z", by_itself=None, largest_beyond=1)),
            )
        )
    )
    rows = read.table("details")[1:]
    assert rows[0] == [
        "-",
        "y",
        "QLinearConv",
        "uint8 [1,8]",
        "1.5 %",
        "2",
        "0.04",
        "31.2 dB",
        "float32-multiplier",
        "rounds the multiplier",
    ]
    assert rows[1][8:] == ["inherited", ""]
    assert read.table("verdict")[1] == ["z", "0.04", "-", "31.2 dB", "-", "beyond rtol 0.001, atol 1e-07"]
    text = " ".join(read.texts)
    assert "31.2 dB SQNR of the outputs; 2 of 4 tensors differ, against onnxruntime 1.32.0" in text
    assert "4 tensors: 2 beyond the tolerance (rtol 0.001, atol 1e-07), 1 within it, 1 the same bit for bit." in text
    assert [row[1] for row in rows] == ["y", "z"], "what the terminal counts as not equal"
    assert len(rows) == 2
    equal = " ".join(Read(html(collected(compare=runtimes(same, equal=True)))).texts)
    assert "equal bit for bit, 1 tensor, against onnxruntime 1.32.0" in equal
    within = " ".join(Read(html(collected(compare=runtimes(same, close, equal=True)))).texts)
    assert "equal within the tolerance, 2 tensors, against onnxruntime 1.32.0" in within
    refused = " ".join(Read(html(collected(compare=runtimes(refused="no such kernel")))).texts)
    assert "does not run the whole model: no such kernel" in refused


def test_a_model_and_what_it_was_quantized_from() -> None:
    read = Read(html(collected(profile=profile([node(0)]), compare=models())))
    assert "35.8 dB SQNR against float.onnx" in " ".join(read.texts)
    assert read.table("argmax")[1] == ["conv", "35.8 dB", "0.999870", "0.45", "7 of 8", "-"]
    assert read.table("why")[1] == ["3", "conv", "Conv", "41.8 dB", "34.0 %", "35.8 dB", "clipping", "conv"]
    assert read.table("float tensor")[1][0] == "-"
    with pytest.raises(CallError, match="different models"):
        collected(profile=profile([], model={"path": "m.onnx", "sha256": "aa" * 32}), compare=models())


def test_the_data_fit_their_schema() -> None:
    compared = [html(collected(compare=found)) for found in (models(), runtimes(pair()))]
    for text in (full_page(), html(collected(check=check([]))), html(collected(profile=profile([]))), *compared):
        jsonschema.validate(Read(text).data, SCHEMA)


def test_about_as_large_as_promised() -> None:
    nodes = [node(n) for n in range(100)]
    text = html(collected(profile=profile(nodes), check=check([finding()])))
    assert 50_000 < len(text.encode()) < 130_000


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("profile", profile([node(0, median_ms="much")]), "nodes[0].median_ms: a number"),
        ("profile", profile([], run=[]), "run: an object"),
        ("profile", {**profile([]), "nodes": 3}, "nodes: a list"),
        ("check", {"models": [{"findings": [finding(index=-1)]}]}, "models[0].findings[0].index"),
        ("quantization", {"tensors": [tensor(size="big")]}, "tensors[0].size: an integer"),
    ],
)
def test_a_wrong_value_is_named(kind: str, body: dict[str, object], words: str) -> None:
    with pytest.raises(CallError) as caught:
        collected(**{kind: body})
    assert words in str(caught.value)


def test_reports_of_two_models_do_not_mix() -> None:
    other = profile([], model={"path": "other.onnx", "sha256": "aa" * 32})
    with pytest.raises(CallError, match="different models"):
        collected(profile=profile([]), run=other)


@pytest.mark.parametrize(
    ("path", "sha", "fits"),
    [
        ("m.onnx", "9f" * 32, True),
        ("copy.onnx", "9f" * 32, True),
        ("m.onnx", "aa" * 32, False),
        ("m.onnx", None, True),
        ("other.onnx", None, False),
    ],
)
def test_a_check_is_of_the_model_of_the_page(path: str, sha: str | None, fits: bool) -> None:
    """By SHA-256; by path if one of the two does not tell it. A check of several models needs that one among them."""
    one = {**check([finding(message="of this one")], path)["models"][0], "sha256": sha}
    stranger = {**check([finding(message="of another")], "z.onnx")["models"][0], "sha256": "bb" * 32}
    for several in ([one], [stranger, one]):
        if fits:
            found = collected(profile=profile([]), check={"models": several}).checked
            assert found is not None
            assert [f.message for f in found.findings] == ["of this one"]
            continue
        with pytest.raises(CallError, match="different models") as caught:
            collected(profile=profile([]), check={"models": several})
        facts = dict(caught.value.facts)
        assert facts["first"].startswith("profile.json: m.onnx, sha256 9f9f9f9f9f9f")
        assert facts["second"].startswith("check.json: ")
        assert path in facts["second"]
        assert "qrun report check.json -o second.html" in " ".join(caught.value.fixes)
        assert "qrun check m.onnx --json > OTHER.json goes with profile.json" in caught.value.fixes


def test_two_reports_of_one_kind_are_of_one_model_too() -> None:
    """The later one goes before the earlier one, but not before one of another model."""
    documents = [
        ("check", Item({"models": [{**check([])["models"][0], "sha256": sha}]}, f"{sha}.json")) for sha in ("aa", "bb")
    ]
    with pytest.raises(CallError, match="different models"):
        page_of(documents, ["qrun"], DATE)
    assert page_of(documents[:1] * 2, ["qrun"], DATE).model.sha256 == "aa"


# Contrast: WCAG 2.2, success criteria 1.4.3 and 1.4.11


def schemes() -> dict[str, dict[str, str]]:
    style = files("qrun.report.html").joinpath("style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    found = {
        name: dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text)) for name, text in (("light", light), ("dark", dark))
    }
    assert set(found["light"]) == set(found["dark"])
    return found


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    colors = schemes()[scheme]
    for ground in ("bg", "panel", "bar"):
        for name in ("text", "muted", "link", "error", "warning", "note", "good"):
            assert contrast(colors[name], colors[ground]) >= 4.5 or (ground == "bar" and name != "text"), (name, ground)
    for name in [f"c{n}" for n in range(8)]:
        assert contrast(colors[name], colors["bg"]) >= 3, name
