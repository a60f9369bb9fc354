"""The whole page: its head, its summary, its sections, and a copy of its data for other programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from qrun.documents.answers import Environment, FedInput, ModelFile, RunOutput
from qrun.evaluating.evaluation import Evaluation
from qrun.ir.types import shape_text, sizes_text
from qrun.memory import human
from qrun.report.evaluation import evaluation_sheet, verdict_of
from qrun.report.grid import Grid
from qrun.report.header import origin
from qrun.report.html.collect import PageContent
from qrun.report.html.comparison import answer, comparison_section, headline
from qrun.report.html.findings import counts, findings_section, rules_section
from qrun.report.html.graph import graph_section
from qrun.report.html.markup import Markup, blocks, facts, html_page, join, section, table, tag
from qrun.report.html.profile import Palette, beside_section, nodes_section, time_section
from qrun.report.html.quantization import quantization_section
from qrun.report.html.roofline import roofline_section
from qrun.report.json import text as json_text
from qrun.report.stats import Stats, stats_grid
from qrun.report.text import duration, file_size, percent, plural


def html(page: PageContent) -> str:
    """The HTML document."""
    return document_of(_file(page), _header(page), _tiles(page), _sections(page), [page])


def document_of(
    title: str, header: Sequence[Markup], tiles: Markup, sections: Sequence[Markup], pages: Sequence[PageContent]
) -> str:
    """The HTML document with links to its sections, and with the data of the pages."""
    links = [_link(section) for section in sections if "<h2" in section]
    body = [
        tag("header", header, tiles, tag("nav", join(links, "\n"), aria_label="Sections")),
        tag("main", join(sections, "\n")),
        tag("script", _data(pages), type="application/json", id="data"),
    ]
    return html_page(f"{title} · qrun report", body)


def _sections(page: PageContent) -> list[Markup]:
    checked, palette = page.checked, Palette(page.nodes)
    return [
        findings_section(checked, {n.index for n in page.nodes}) if checked else Markup(),
        _outputs(page.outputs),
        time_section(page, palette),
        graph_section(page, palette),
        beside_section(page),
        nodes_section(page),
        roofline_section(page, palette),
        comparison_section(page.comparison) if page.comparison else Markup(),
        _evaluation(page.evaluation) if page.evaluation else Markup(),
        quantization_section(page.tensors, page.all_tensors),
        rules_section(checked) if checked else Markup(),
    ]


def _link(section: Markup) -> Markup:
    """A link to a section, named by its heading."""
    _, _, after = section.partition('<h2 id="')
    id, _, rest = after.partition('">')
    return tag("a", Markup(rest.partition("<")[0]), href=f"#{id}")


def _data(pages: Sequence[PageContent]) -> Markup:
    """JSON in which no text can end the script element; its schema is qrun/schemas/report-1.0.json."""
    from qrun import __version__

    first, *others = pages
    head = {"schema": "qrun/report/1.0", "qrun": __version__, "command": first.command, "date": first.date}
    body = {"documents": first.data, **({"others": [page.data for page in others]} if others else {})}
    return Markup(json_text({**head, **body}, separators=(",", ":")).replace("<", "\\u003c"))


def _file(page: PageContent) -> str:
    path = page.model.path or "model"
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] or path


def _verdict(page: PageContent) -> Markup:
    """The answer in a sentence or two; empty if the page has none."""
    sentences = list(_sentences(page))
    return tag("p", *(part for pair in sentences for part in (*pair, " ")), class_="verdict") if sentences else Markup()


def _sentences(page: PageContent) -> Iterator[tuple[str, str]]:
    """Yields (bold part, rest)."""
    if page.comparison is not None:
        big, rest, good = answer(page.comparison)
        yield tag("b", big, class_=None if good is None else "good" if good else "error"), rest
    if page.evaluation is not None:
        word, _, rest = verdict_of(page.evaluation)[0].partition(":")
        yield tag("b", word[:1].upper() + word[1:]), f":{rest}."
    checked = page.checked
    if checked is not None:
        worst = next((f for f in checked.findings), None)
        judged = f" by {plural(checked.rules, 'rule')}" if checked.rules else ""
        if worst is None:
            yield tag("b", "Nothing found", class_="good"), f"{judged}."
        else:
            yield tag("b", counts(checked), class_=worst.level), f", first {worst.rule} {worst.name}."
    if page.time is not None:
        slowest = max(page.nodes, key=lambda n: n.median_ms, default=None)
        most = f"; {percent(slowest.share, 0)} of it in {slowest.label}" if slowest and slowest.share else ""
        yield tag("b", duration(page.time.median_ms * 1e6)), f" a run{most}."


def _header(page: PageContent) -> list[Markup]:
    model = page.model
    rows = [
        ("model", _model(model)),
        ("sha256", tag("code", model.sha256 or "") if model.sha256 else ""),
        *(("input", _input(i, page.told.symbols)) for i in page.told.inputs),
        ("run by", _runner(page.told.environment or Environment())),
    ]
    return [tag("h1", _file(page)), _verdict(page), about_page(page, rows)]


def about_page(page: PageContent, rows: Sequence[tuple[str, str]]) -> Markup:
    """The folded part of the page: these rows, the versions that made the page, and the command that makes it again."""
    from qrun import __version__

    env = page.told.environment or Environment()
    told = {"Python": env.python, "numpy": env.numpy, "onnx": env.onnx}
    versions = [f"{name} {known}" for name, known in told.items() if known]
    cpus = plural(env.cpus, "CPU") if env.cpus else ""
    made = ", ".join(filter(None, [f"qrun {__version__}", *versions, cpus, env.machine, page.date]))
    about = facts([*rows, ("made by", made), ("again", tag("code", shlex.join(page.command)))])
    summary = tag("summary", (rows and _model(page.model)) or "About this page")
    return tag("details", summary, about, class_="about-page")


def _model(model: ModelFile) -> str:
    opsets = [f"{domain} {version}" for domain, version in model.opsets.items()]
    parts = [
        f"opset {', '.join(opsets)}" if opsets else "",
        plural(model.nodes, "node") if model.nodes is not None else "",
        file_size(model.bytes) if model.bytes else "",
        model.form,
        f"producer {model.producer}" if model.producer else "",
    ]
    return "; ".join(filter(None, parts))


def _input(i: FedInput, symbols: Mapping[str, int]) -> str:
    bound = f" ({sizes_text(symbols)})" if symbols else ""
    return f"{i.name} {i.type} {shape_text(i.shape)} {origin(i.source)}".rstrip() + bound


def _runner(env: Environment) -> str:
    if env == Environment():
        return ""
    runtime = env.runtime if env.runtime not in ("", "qrun") else f"qrun, {env.backend} backend"
    return runtime + (f", arithmetic as {env.arith}" if env.arith not in ("", "exact") else "")


def _tiles(page: PageContent) -> Markup:
    """The big numbers, each with a caption."""
    found = [
        tag("div", tag("b", big, class_=style), tag("span", small), class_="tile") for big, small, style in _big(page)
    ]
    return tag("div", found, class_="tiles") if found else Markup()


def _big(page: PageContent) -> Iterator[tuple[str, str, str | None]]:
    """Yields number, caption and style."""
    checked, time, most = page.checked, page.time, page.told.peak_bytes
    if checked is not None:
        big, _, rest = counts(checked).partition(", ")
        judged = plural(checked.rules, "rule") if checked.rules else "rules of qrun run"
        worst = next(iter(f.level for f in checked.findings), "good")
        yield big, f"{rest}, {judged}".removeprefix(", "), worst
    if time is not None:
        runs = len(time.samples_ms)
        spread = f"median of {plural(runs, 'run')}, p90 {duration((time.p90_ms or 0) * 1e6)}"
        yield duration(time.median_ms * 1e6), "one run" if runs == 1 else spread, None
    if page.comparison is not None:
        big, small, equal = headline(page.comparison)
        yield big, small, "good" if equal else None
    elif time is not None and time.median_ms and page.macs:
        peak = f", {human(most)} of live tensors" if most else ""
        speed = f"{page.macs / time.median_ms / 1e6:.1f} GMAC/s"
        yield speed, f"{_amount(page.macs)} multiply-adds a run{peak}", None


def _amount(count: int) -> str:
    """``4.09 G``, ``349 M``, ``27.6 k``."""
    size, unit = next(((s, u) for s, u in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if count >= s), (1, ""))
    return f"{count / size:.3g}{unit}"


def _outputs(outputs: Sequence[RunOutput]) -> Markup:
    """The statistics of a run's outputs."""
    if not outputs:
        return Markup()
    about = "Of the first run. argmax: the index of the largest element, or of the largest in each row."
    return section("outputs", "Outputs", about, table("outputs of the run", outputs_grid(outputs)))


def outputs_grid(outputs: Sequence[RunOutput]) -> Grid:
    """The outputs in the terminal's form."""
    return stats_grid(
        [
            (o.name, o.type, o.shape, Stats(o.min, o.max, o.mean, o.argmax, o.nan or 0, o.inf or 0, o.argmax_rows))
            for o in outputs
        ]
    )


def _evaluation(found: Evaluation) -> Markup:
    """The report of ``qrun eval`` as a section, with one row per model so that its table can be sorted."""
    sheet = evaluation_sheet(found, (), markdown=True)
    about = f"{'; '.join([*sheet.about, *sheet.notes])}. Intervals are 95 % confidence intervals."
    return section("evaluation", "Data set", about, blocks(sheet.blocks))
