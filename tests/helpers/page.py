"""Shared by the tests of the HTML page: documents of invented models, and pages read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from qrun.documents.record import Item
from qrun.report.html.collect import PageContent, page_of
from qrun.report.html.page import html

DATE = "2026-11-20"
MACHINE = {"cpu": "a CPU", "threads": 1, "instruction": "vpdpbusd", "int8": 2e11, "float32": 5e10,
           "memory": [[1 << 14, 1.8e11], [1 << 26, 1.2e10]]}  # fmt: skip
VOID = ("meta", "input")


def node(index: int, **more: Any) -> dict[str, Any]:
    """A node of a profile; its time has no order that its place has."""
    median = 1 + (index * 37 % 101) / 7
    return {
        "index": index, "name": f"/features/{index}/conv/Conv_quant", "domain": "ai.onnx",
        "op": ("QLinearConv", "QLinearAdd", "MaxPool")[index % 3], "backend": "native", "why": "",
        "kernels": [{"kernel": "k", "form": "y32", "first": 0, "channels": 8, "why": ""}], "median_ms": median,
        "p90_ms": median * 1.1, "share": 0.1, "macs": 10**8 * (index % 3 == 0), "bytes": 10**6, "roof_share": 0.4,
        "bound": "compute", "samples_ms": [1.0, 2.0],
        "outputs": [{"name": f"t{index}", "type": "uint8", "shape": [1, 96, 56, 56]}], **more,
    }  # fmt: skip


def finding(**more: Any) -> dict[str, Any]:
    return {
        "rule": "QR301", "name": "scale-shape", "level": "error", "message": "w_scale has shape [3]", "node": "/stem/conv",
        "index": 0, "op": "QLinearConv-10", "tensor": "s (input 4, w_scale)", "expected": "scalar or [16]", "got": "[3]",
        "why": "one scale for each channel", "fix": "export one scale per channel", **more,
    }  # fmt: skip


def tensor(**more: Any) -> dict[str, Any]:
    return {
        "name": "t0", "index": 0, "node": "n0", "kind": "activation", "type": "uint8", "shape": [1, 8],
        "scale": [0.02, 0.02], "zero_point": [3, 3], "size": 8,
        "limits": [0, 255], "used": [0, 255], "at_low": 1, "at_high": 2, "bins": [1, 0, 3, 1],
        "bin_codes": [63, 64, 64, 63], **more,
    }  # fmt: skip


def profile(nodes: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model": {"path": "m.onnx", "sha256": "9f" * 32, "opsets": {"ai.onnx": 13}, "nodes": len(nodes), "producer": "p"},
        "environment": {"python": "3.13.1", "numpy": "2.4.6", "onnx": "1.23.2", "machine": "x86_64", "backend": "native",
                        "runtime": "qrun", "cpus": 8, "arith": "exact"},
        "inputs": [{"name": "image", "type": "float32", "shape": [1, 3, 224, 224], "source": "x.npy"}],
        "symbols": {"N": 1}, "load_ms": 2.5, "peak_bytes": 1 << 20, "machine": MACHINE, "nodes": list(nodes), "notes": [],
        "run": {"median_ms": 41.6, "min_ms": 40, "p90_ms": 44, "max_ms": 61, "mean_ms": 42, "sd_ms": 1.0,
                "samples_ms": [41.6] * 68}, **more,
    }  # fmt: skip


def check(findings: Sequence[Mapping[str, Any]], path: str = "m.onnx") -> dict[str, Any]:
    models = [
        {
            "path": path,
            "sha256": "9f" * 32,
            "nodes": 3,
            "rules": ["QR301", "QR302"],
            "findings": list(findings),
            "vectors": [],
        }
    ]
    return {"models": models}


def pair(**more: Any) -> dict[str, Any]:
    """A tensor of a comparison of runtimes."""
    return {
        "name": "y", "node": 1, "op": "QLinearConv", "type": "uint8 [1,8]", "equal": False, "identical": False,
        "elements": 200, "differing": 3, "largest": 2, "unit": "step", "max_abs": 0.04, "sqnr_db": 31.25,
        "by_itself": {"cause": "float32-multiplier", "text": "rounds the multiplier"}, **more,
    }  # fmt: skip


def runtimes(*tensors: dict[str, Any], **more: Any) -> dict[str, Any]:
    sides = [{"name": "qrun", "label": "qrun 0.1.0 (reference)"}, {"name": "ort", "label": "onnxruntime 1.32.0"}]
    return {"kind": "runtimes", "sides": sides, "equal": False, "isolate": False, "refused": None,
            "tolerance": {"lsb": 0, "rtol": 0.001, "atol": 1e-7}, "tensors": list(tensors), "outputs": list(tensors[-1:]), **more}  # fmt: skip


def models(name: str = "conv") -> dict[str, Any]:
    """A comparison of a model with what it was quantized from."""
    noise = {"sqnr_db": 35.75, "cosine": 0.99987, "max_abs": 0.45}
    return {
        "kind": "models", "equal": False, "runs": 2,
        "reference": {"path": "float.onnx"}, "quantized": {"path": "int8.onnx", "sha256": "9f" * 32},
        "outputs": [{"name": name, **noise, "argmax_agreed": 7, "argmax_total": 8}],
        "costs": [{"index": 3, "name": name, "op": "Conv", "tensor": name, "output_sqnr_db": 41.8, "share": 0.34,
                   "reason": "clipping", "why": name, "local": noise}],
        "keep_in_float": {"nodes": [name]},
        "tensors": [{"node": None, "tensor": name, "reference": name, "cumulated": noise, "local": None}],
    }  # fmt: skip


def collected(**documents: Mapping[str, Any]) -> PageContent:
    """What a page shows of documents by kind."""
    items = [(kind, Item(json.loads(json.dumps(body)), f"{kind}.json")) for kind, body in documents.items()]
    return page_of(items, ["qrun", "report", "m.onnx"], DATE)


def graph(count: int) -> dict[str, Any]:
    """A chain of nodes, every third of which is read farther on, too."""
    return {"edges": [[n, n + step] for n in range(count) for step in (1, 5)[: 1 + (n % 3 == 0)] if n + step < count]}


def full_page(count: int = 6) -> str:
    """A page with every section; the second finding is of another node."""
    findings = [finding(), finding(index=3, node="/features/3/conv/Conv_quant"),
                finding(rule="QR402", name="saturated", level="warning")]  # fmt: skip
    tensors = [tensor(name=f"t{place}", at_low=place) for place in range(count)]
    return html(collected(profile=profile([node(n) for n in range(count)]), check=check(findings),
                          quantization={"tensors": tensors}, graph=graph(count)))  # fmt: skip


class Read(HTMLParser):
    """A page as its reader sees it: elements with their attributes, texts, and rows of tables by the id around them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":
            return
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts.append(data)
            return
        self.texts.append(data)
        if any(tag in self.open for tag in ("td", "th")):
            self.tables[-1][-1][-1] += data

    def table(self, header: str) -> list[list[str]]:
        """The rows of the first table with this column."""
        return next(rows for rows in self.tables if header in rows[0])

    @property
    def data(self) -> dict[str, Any]:
        """The copy for programs."""
        return next(json.loads(text) for text in self.scripts if text.startswith("{"))
