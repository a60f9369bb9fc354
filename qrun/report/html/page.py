"""The page: its head, its summary, its sections, and a copy of its data for other programs."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from qrun.ir.types import shape_text
from qrun.memory import human
from qrun.report.html.comparison import comparison_section, headline
from qrun.report.html.findings import counts, findings_section, rules_section
from qrun.report.html.quantization import quantization_section
from qrun.report.html.roofline import roofline_section
from qrun.report.html.tags import NEWLINE, Markup, join, tag, void
from qrun.report.html.timing import Palette, nodes_section, time_section
from qrun.report.json import text as json_text
from qrun.report.text import duration, file_size, plural

Fields = Mapping[str, Any]


def page(fields: Fields) -> str:
    """The HTML document of what `qrun.report.html.collect.page_fields` made."""
    sections = _sections(fields)
    links = [_link(section) for section in sections if section]
    body = [
        tag("header", _header(fields), _tiles(fields), tag("nav", join(links, "\n"), aria_label="Sections")),
        tag("main", join(sections, "\n")),
    ]
    script = Markup(_resource("script.js"))
    return "<!DOCTYPE html>\n" + tag(
        "html",
        tag("head", _head(fields, script)), NEWLINE,
        tag("body", join(body, "\n"), NEWLINE, tag("script", _data(fields), type="application/json", id="data"), NEWLINE,
            tag("script", script)),
        NEWLINE, lang="en",
    )  # fmt: skip


def _sections(fields: Fields) -> list[Markup]:
    checked, nodes = fields["checked"], fields["nodes"]
    palette = Palette(nodes)
    return [
        findings_section(checked, {n["index"] for n in nodes}) if checked else Markup(),
        *([time_section(fields, palette), nodes_section(fields), roofline_section(fields, palette)] if nodes else []),
        comparison_section(fields["comparison"]) if fields["comparison"] else Markup(),
        quantization_section(fields["quantization"] or (), fields["all_tensors"]),
        rules_section(checked) if checked else Markup(),
    ]


def _link(section: Markup) -> Markup:
    """To a section, by its heading."""
    _, _, after = section.partition('<h2 id="')
    id, _, rest = after.partition('">')
    return tag("a", Markup(rest.partition("<")[0]), href=f"#{id}")


def _resource(name: str) -> str:
    return files("qrun.report.html").joinpath(name).read_text(encoding="utf-8")


def _head(fields: Fields, script: str) -> list[str]:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return [
        NEWLINE, void("meta", charset="utf-8"),
        NEWLINE, void("meta", http_equiv="Content-Security-Policy", content=policy),
        NEWLINE, void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        NEWLINE, void("meta", name="generator", content=f"qrun {fields['qrun']}"),
        NEWLINE, tag("title", f"{_file(fields)} · qrun report"),
        NEWLINE, tag("style", Markup(_resource("style.css"))), NEWLINE,
    ]  # fmt: skip


def _data(fields: Fields) -> Markup:
    """JSON in which no sign can end the script element."""
    return Markup(json_text(fields, separators=(",", ":")).replace("<", "\\u003c"))


def _file(fields: Fields) -> str:
    path = str(fields["model"].get("path") or "model")
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] or path


def _header(fields: Fields) -> list[Markup]:
    env, model = fields["environment"], fields["model"]
    versions = [
        f"{name} {env[key]}"
        for key, name in (("python", "Python"), ("numpy", "numpy"), ("onnx", "onnx"))
        if env.get(key)
    ]
    machine = [plural(env["cpus"], "CPU")] if env.get("cpus") else []
    rows = [
        ("model", _model(model)),
        ("sha256", model.get("sha256") or ""),
        *(("input", _input(i, fields["symbols"])) for i in fields["inputs"]),
        ("run by", _runner(env)),
        (
            "made by",
            ", ".join([f"qrun {fields['qrun']}", *versions, *machine, env.get("machine") or "", fields["date"]]),
        ),
        ("again", tag("code", shlex.join(fields["command"]))),
    ]
    parts = [join([tag("dt", label), tag("dd", value.replace(", , ", ", ") if not isinstance(value, Markup) else value,
                                         class_="k" if label == "sha256" else None)])
             for label, value in rows if value]  # fmt: skip
    return [tag("h1", _file(fields)), tag("dl", parts)]


def _model(model: Fields) -> str:
    opsets = [f"{domain} {version}" for domain, version in model.get("opsets", {}).items()]
    parts = [
        f"opset {', '.join(opsets)}" if opsets else "",
        plural(model["nodes"], "node") if model.get("nodes") is not None else "",
        file_size(model["bytes"]) if model.get("bytes") else "", model.get("form") or "",
        f"producer {model['producer']}" if model.get("producer") else "",
    ]  # fmt: skip
    return "; ".join(part for part in parts if part)


def _input(i: Fields, symbols: Mapping[str, int]) -> str:
    source = i["source"]
    origin = source if source.startswith("random") else f"from {source}" if source else ""
    bound = f" ({', '.join(f'{symbol}={size}' for symbol, size in symbols.items())})" if symbols else ""
    return f"{i['name']} {i['type']} {shape_text(tuple(i['shape']))} {origin}".rstrip() + bound


def _runner(env: Fields) -> str:
    if not env:
        return ""
    runtime = env["runtime"] if env["runtime"] not in ("", "qrun") else f"qrun, {env['backend']} backend"
    return runtime + (f", arithmetic as {env['arith']}" if env["arith"] not in ("", "exact") else "")


def _tiles(fields: Fields) -> Markup:
    last = _comparison_tile(fields) or _speed_tile(fields)
    found = [tile for tile in (_findings_tile(fields), _time_tile(fields), last) if tile]
    return tag("div", found, class_="tiles") if found else Markup()


def _tile(big: str, small: str, style: str | None = None) -> Markup:
    return tag("div", tag("b", big, class_=style), tag("span", small), class_="tile")


def _findings_tile(fields: Fields) -> Markup:
    checked = fields["checked"]
    if checked is None:
        return Markup()
    worst = next(iter(f["level"] for f in checked["findings"]), "good")
    big, _, rest = counts(checked).partition(", ")
    judged = plural(checked["rules"], "rule") if checked["rules"] else "rules of qrun run"
    return _tile(big, f"{rest}, {judged}".removeprefix(", "), worst)


def _time_tile(fields: Fields) -> Markup:
    time = fields["time"]
    if time is None or time["median_ms"] is None:
        return Markup()
    big = duration(time["median_ms"] * 1e6)
    if time["runs"] == 1:
        return _tile(big, "one run")
    return _tile(big, f"median of {plural(time['runs'], 'run')}, p90 {duration((time['p90_ms'] or 0) * 1e6)}")


def _comparison_tile(fields: Fields) -> Markup:
    if fields["comparison"] is None:
        return Markup()
    big, small, equal = headline(fields["comparison"])
    return _tile(big, small, "good" if equal else None)


def _speed_tile(fields: Fields) -> Markup:
    time, macs = fields["time"], fields["all_nodes"]["macs"]
    if time is None or not time["median_ms"] or not macs:
        return Markup()
    peak = f", {human(time['peak_bytes'])} of live tensors" if time.get("peak_bytes") else ""
    return _tile(f"{macs / time['median_ms'] / 1e6:.1f} GMAC/s", f"{_amount(macs)} multiply-adds a run{peak}")


def _amount(count: int) -> str:
    """``4.09 G``, ``349 M``, ``27.6 k``."""
    size, unit = next(((s, u) for s, u in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if count >= s), (1, ""))
    return f"{count / size:.3g}{unit}"
