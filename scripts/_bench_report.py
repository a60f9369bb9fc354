"""The tables of scripts/bench.py, for the terminal and for benchmarks.md, and the facts about the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _engines import ENGINES, installed, version

NAMES = {
    "qrun": "qrun",
    "reference": "qrun reference",
    "ort": "onnxruntime",
    "ort-precise": "onnxruntime, exact sums",
    "openvino": "OpenVINO",
    "openvino-noamx": "OpenVINO, no AMX",
}
Table = tuple[list[str], list[list[str]]]


def machine(isa: str, instruction: str) -> dict[str, Any]:
    flags = _cpu("flags")
    return {
        "cpu": _cpu("model name") or platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isa": isa,
        "instruction": instruction,
        "amx": "amx_int8" in flags.split(),
        "system": platform.platform(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def versions(engines: Sequence[str]) -> dict[str, str]:
    found = {engine: version(engine) for engine in ENGINES if engine in engines and installed(engine)}
    return {**found, "python": platform.python_version()}


def _cpu(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def times_table(results: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> Table:
    """min / median ms of each engine, qrun's ratio to the others, GMAC/s and share of the peak of qrun."""
    others = [e for e in engines if e != "qrun"] if "qrun" in engines else []
    head = ["model", "format", "threads", "batch", *(f"{NAMES[e]} ms" for e in engines)]
    head += [f"/ {NAMES[e]}" for e in others] + ["GMAC/s", "of peak"]
    rows = []
    for result in results:
        row = [result["model"], result["format"], str(result["threads"]), str(result["batch"])]
        found = result["engines"]
        row += [_times(found[e]) for e in engines]
        row += [_ratio(result["ratios"].get(e)) for e in others]
        speed = found.get("qrun", {})
        share = speed.get("peak_share")
        row += [f"{speed['gmacs']:.0f}" if "gmacs" in speed else "", f"{share:.0%}" if share else ""]
        rows.append(row)
    return head, rows


def line(result: Mapping[str, Any]) -> str:
    """A case in a few words: each engine's minimum, or why it has none."""
    found = result["engines"].items()
    timed = [f"{NAMES[e]} {_digits(f['min_ms'])} ms" for e, f in found if "min_ms" in f]
    return ", ".join(timed + [f"{NAMES[e]} {f['state']}: {f['reason']}" for e, f in found if "reason" in f])


def profiling_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """min / median ms of a run and of a profiled one, and how much longer that takes."""
    head = ["model", "format", "threads", "run ms", "profiled ms", "longer"]
    table = []
    for row in rows:
        times = [f"{_digits(row[kind]['min'])} / {_digits(row[kind]['median'])}" for kind in ("run_ms", "profiled_ms")]
        more = " / ".join(f"{row['overhead'][key]:+.1%}" for key in ("min", "median"))
        table.append([row["model"], row["format"], str(row["threads"]), *times, more])
    return head, table


def startup_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    keys = ["create_ms", "first_run_ms", "later_run_ms", "setup_ms", "imports_ms", "process_ms"]
    head = ["engine", "create ms", "first run ms", "later run ms", "create + first - later", "imports ms", "process ms"]
    return head, [[_engine(row), *(_cells(row, keys, "{:.1f}"))] for row in rows]


def processes_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Least wall and CPU ms of whole processes, and both by those of the process that each is held to."""
    table = []
    for row in rows:
        cells = [row["job"], row["process"]]
        for kind in ("wall", "cpu"):
            ratio = row.get(f"{kind}_ratio")
            cells += [f"{row[f'{kind}_ms']:.0f}", "" if ratio is None else f"{ratio:.2f}"]
        table.append(cells)
    return ["job", "process", "wall ms", "ratio", "CPU ms", "ratio"], table


def memory_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ["engine", "after imports MiB", "peak MiB"]
    return head, [[_engine(row), *_cells(row, ["imports_mib", "peak_mib"], "{:.1f}")] for row in rows]


def _engine(row: Mapping[str, Any]) -> str:
    name = NAMES[row["engine"]]
    return f"{name}, {row['cache']}" if row.get("cache") else name


def _cells(row: Mapping[str, Any], keys: Sequence[str], form: str) -> list[str]:
    if "state" in row:
        return [str(row["state"])[:60]] + [""] * (len(keys) - 1)
    return [form.format(row[key]) for key in keys]


def _times(found: Mapping[str, Any]) -> str:
    if "min_ms" not in found:
        return str(found["state"])
    return f"{_digits(found['min_ms'])} / {_digits(found['median_ms'])}"


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['min']:.2f}" if ratio else ""


def _digits(value: float) -> str:
    """Three significant digits."""
    return (
        f"{value:.3f}"
        if value < 1
        else f"{value:.2f}"
        if value < 10
        else f"{value:.1f}"
        if value < 100
        else f"{value:.0f}"
    )


def markdown(table: Table) -> str:
    head, rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(title: str, table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn

    head, rows = table
    drawn = Drawn(*head, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in drawn.columns[1:]:
        column.justify = "right"
    for row in rows:
        drawn.add_row(*(cell.replace(" ", "\u00a0") for cell in row))
    console = Console()
    Console(width=None if console.is_terminal else 200).print(drawn)
