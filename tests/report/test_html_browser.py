"""The HTML page in a real browser: nothing requested, nothing complained about, filter and sort, two widths,
two schemes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import Page, browser, find_browser
from helpers.page import check, collected, finding, full_page, graph, models, node, pair, profile, runtimes, tensor

from qrun.report.html.page import html
from qrun.report.html.several import comparison_document

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no chromium or google-chrome is installed")
COUNT = 40


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(full_page(COUNT), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long and hostile names, and findings that fill a table."""
    names = ["x" * 300, "<script>document.title = 'broken'</script>", '"><img src=x>', "[a] \U0001f600", "a\x00\u202eb"]
    found = [finding(node=name, tensor=name, expected=name, got=name, why=name, message=name) for name in names]
    text = html(
        collected(
            profile=profile([node(n, name=name, op="Q" * 80) for n, name in enumerate(names)], notes=["n" * 300]),
            check=check([*found, finding(rule="QR402", message="m" * 300, node="n" * 300)], "p" * 200),
            quantization={"tensors": [tensor(name=name) for name in names]},
            graph=graph(len(names)),
            compare=runtimes(
                *(pair(name=name, op=name, by_itself={"cause": name, "text": name}) for name in names),
                refused="r" * 300,
            ),
        )
    )
    path = tmp_path_factory.mktemp("odd") / "odd.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models side by side; the name of one is longer than a window."""
    pages = []
    for place, name in enumerate(("float.onnx", "int8.onnx", "x" * 300)):
        model = {"path": name, "sha256": f"{place}f" * 32}
        times = {"median_ms": 9.0 - place, "samples_ms": [9.0 - place + n / 100 for n in range(20)]}
        found = [finding(rule="QR402", node="n" * 100)] * place
        page = collected(
            profile=profile([node(n, median_ms=n + 1.0 - place / 9) for n in range(COUNT)], model=model, run=times),
            check={"models": [{**check(found, name)["models"][0], "sha256": f"{place}f" * 32}]},
            compare={**models("o" * 200), "quantized": model},
        )
        pages.append(page)
    path = tmp_path_factory.mktemp("several") / "several.html"
    path.write_text(comparison_document(pages, ["a.json", "b.json", "c.json"]), encoding="utf-8")
    return path


def test_columns_of_models_sort_too(tab: Page, several: Path) -> None:
    tab.open(several)
    place = "[...document.querySelectorAll('table')].at(-1).closest('section').id = 'last'"
    assert tab.evaluate(place) == "last"
    click(tab, "last", 2)
    found = [float(time) * (1e-3 if unit == "us" else 1) for time, unit in map(str.split, column(tab, "last", 2))]
    assert len(found) == COUNT
    assert found == sorted(found, reverse=True)


def column(tab: Page, table: str, place: int) -> list[str]:
    """The texts of a column's visible cells."""
    rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter(r => r.offsetParent !== null)"
    found: list[str] = tab.evaluate(f"{rows}.map(r => r.cells[{place}].textContent)")
    return found


def heading(tab: Page, table: str, place: int) -> Any:
    return tab.evaluate(f"document.querySelectorAll('#{table} th')[{place}].getAttribute('aria-sort')")


def click(tab: Page, table: str, place: int) -> None:
    """A real click of the mouse on a header."""
    box = tab.evaluate(
        f"(() => {{ const b = document.querySelectorAll('#{table} th')[{place}].querySelector('button');"
        "b.scrollIntoView({block: 'center', inline: 'center'}); const r = b.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2] })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)


def write(tab: Page, table: str, text: str) -> None:
    """Put a text in the filter of a table as a keyboard does."""
    tab.evaluate(
        f"(() => {{ const b = document.querySelector('[data-table={table}] input'); b.focus(); b.select(); }})()"
    )
    tab.call("Input.insertText", text=text)


@pytest.mark.parametrize("name", ["normal", "odd", "several"])
def test_nothing_is_requested_and_nothing_complains(name: str, tab: Page, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    tab.open(path)
    assert tab.evaluate("document.title").endswith("qrun report")
    assert tab.requests == [path.resolve().as_uri()]
    assert tab.complaints == []


def test_what_the_other_tests_rely_on(tab: Page, tmp_path: Path) -> None:
    """A page that loads something and runs a foreign script is seen to do so."""
    text = full_page().replace("</main>", '<img src="x.png"><script>document.title = "broken"</script></main>')
    (tmp_path / "bad.html").write_text(text, encoding="utf-8")
    tab.open(tmp_path / "bad.html")
    assert tab.evaluate("document.title") != "broken", "the policy stops it"
    assert len(tab.complaints) == 2
    assert all("Content Security Policy" in text for text in tab.complaints)


def test_the_data_can_be_read(tab: Page, normal: Path) -> None:
    tab.open(normal)
    assert (
        len(json.loads(tab.evaluate("document.getElementById('data').textContent"))["documents"]["profile"]["nodes"])
        == COUNT
    )


@pytest.mark.parametrize("place", [3, 4, 5, 6, 7, 9])
def test_numbers_are_sorted_by_value(place: int, tab: Page, normal: Path) -> None:
    tab.open(normal)
    before = column(tab, "node-table", place)
    assert heading(tab, "node-table", 3) == "descending", "marked before any click"
    if place == 3:
        click(tab, "node-table", 0)
    assert heading(tab, "node-table", place) == "none"

    def numbers() -> list[float]:
        texts = column(tab, "node-table", place)
        assert sorted(texts) == sorted(before)
        last = [text for text in texts if text == "-"]
        assert texts[len(texts) - len(last) :] == last, "nothing to sort by goes last"
        return [float(text.split(" ")[0].rstrip("%")) for text in texts[: len(texts) - len(last)]]

    click(tab, "node-table", place)
    assert heading(tab, "node-table", place) == "descending"
    assert numbers() == sorted(numbers(), reverse=True)
    click(tab, "node-table", place)
    assert heading(tab, "node-table", place) == "ascending"
    assert numbers() == sorted(numbers())
    click(tab, "node-table", 0)
    assert (heading(tab, "node-table", 0), heading(tab, "node-table", place)) == ("ascending", "none")
    assert column(tab, "node-table", 0) == [str(n) for n in range(COUNT)]


@pytest.mark.parametrize("place", [1, 2, 8, 10])
def test_names_are_sorted_as_people_count(place: int, tab: Page, normal: Path) -> None:
    tab.open(normal)
    click(tab, "node-table", place)
    assert heading(tab, "node-table", place) == "ascending"
    if place == 1:
        assert column(tab, "node-table", 0) == [str(n) for n in range(COUNT)], "10 after 9"
    else:
        assert column(tab, "node-table", place) == sorted(column(tab, "node-table", place))
    click(tab, "node-table", place)
    assert heading(tab, "node-table", place) == "descending"


def test_every_other_table_sorts_too(tab: Page, normal: Path) -> None:
    tab.open(normal)
    click(tab, "tensor-table", 9)
    found = [float(text.rstrip("%")) for text in column(tab, "tensor-table", 9)]
    assert found == sorted(found, reverse=True)
    fixed = "[...document.querySelectorAll('#tensor-table th')].filter(h => !h.querySelector('button')).map(h => h.textContent)"
    assert tab.evaluate(fixed) == ["codes"]


def test_the_filter_leaves_what_has_all_words(tab: Page, normal: Path) -> None:
    tab.open(normal)
    assert len(column(tab, "node-table", 0)) == COUNT
    write(tab, "node-table", "qlinearADD")
    operators = column(tab, "node-table", 2)
    assert set(operators) == {"QLinearAdd"}
    assert (
        tab.evaluate("document.querySelector('[data-table=node-table] output').textContent")
        == f"{len(operators)} of {COUNT}"
    )
    write(tab, "node-table", "/2 add")
    assert 0 < len(column(tab, "node-table", 0)) < len(operators)
    write(tab, "node-table", "uint8")
    assert column(tab, "node-table", 0) == [], "other columns do not count"
    write(tab, "node-table", "")
    tab.evaluate("document.querySelector('[data-table=node-table] input').dispatchEvent(new Event('input'))")
    write(tab, "tensor-table", "t1 activation")
    assert all(name.startswith("t1") for name in column(tab, "tensor-table", 1))
    label = "document.querySelector('[data-table=node-table] input').labels[0].textContent"
    assert tab.evaluate(label) == "Filter by name or operator"


def test_without_scripts_everything_is_there(tab: Page, normal: Path) -> None:
    tab.open(normal, scripts=False)
    assert sorted(map(int, column(tab, "node-table", 0))) == list(range(COUNT))
    assert len(column(tab, "tensor-table", 0)) == COUNT
    assert tab.evaluate("document.querySelectorAll('th button').length") == 0
    assert tab.evaluate("[...document.querySelectorAll('.filter')].every(f => f.offsetParent === null)")
    for shapes in (".strip rect", ".plot circle", ".plot .roof", "svg.h path"):
        sizes = f"[...document.querySelectorAll('{shapes}')].map(e => e.getBoundingClientRect()).map(r => r.width + r.height)"
        found = tab.evaluate(sizes)
        assert found, shapes
        assert max(found) > 2, shapes
    assert tab.complaints == []


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1000, 1400])
@pytest.mark.parametrize("name", ["normal", "odd", "several"])
def test_readable(name: str, width: int, dark: bool, scripts: bool, tab: Page, request: pytest.FixtureRequest) -> None:
    tab.open(request.getfixturevalue(name), width=width, dark=dark, scripts=scripts)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width == tab.evaluate("innerWidth")
    texts = (
        "[...document.querySelectorAll('body *')].filter(e => !['SCRIPT', 'TITLE', 'title'].includes(e.tagName)"
        " && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))"
    )
    assert tab.evaluate(f"Math.min(...{texts}.map(e => parseFloat(getComputedStyle(e).fontSize)))") >= 11
    boxes = f"{texts}.filter(e => !e.closest('.scroll, pre, svg, .filter, details')).map(e => e.getBoundingClientRect().right)"
    assert tab.evaluate(f"Math.max(...{boxes})") <= width, "nothing outside a table is cut"
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light is not dark


def press(tab: Page, key: str, code: int, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        tab.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            code=key,
            windowsVirtualKeyCode=code,
            text=text if kind == "keyDown" else "",
        )


def test_the_keyboard_filters_and_sorts(tab: Page, normal: Path) -> None:
    """From the box of the filter the Tab key leads to the table and its headers; Enter sorts."""
    tab.open(normal)
    write(tab, "node-table", "qlinearadd")
    assert set(column(tab, "node-table", 2)) == {"QLinearAdd"}
    for _ in range(2):
        press(tab, "Tab", 9)
    assert tab.evaluate("document.activeElement.textContent") == "#"
    press(tab, "Enter", 13, "\r")
    assert heading(tab, "node-table", 0) == "ascending"
    found = list(map(int, column(tab, "node-table", 0)))
    assert found == sorted(found)


@pytest.mark.parametrize("width", [400, 1000, 1400])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["normal", "odd", "several"])
def test_axe_finds_no_violation(name: str, width: int, dark: bool, tab: Page, request: pytest.FixtureRequest) -> None:
    """axe-core, a checker of accessibility; QRUN_AXE names its axe.min.js."""
    script = os.environ.get("QRUN_AXE", "")
    if not script:
        pytest.skip("QRUN_AXE does not name the file axe.min.js of axe-core")
    tab.open(request.getfixturevalue(name), width=width, dark=dark)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    tab.evaluate(Path(script).read_text(encoding="utf-8") + ";0")
    told = "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html)]))"
    assert tab.evaluate(told) == []


@pytest.mark.parametrize("width", [400, 1000, 1400])
def test_no_label_of_the_plot_is_cut(width: int, tab: Page, normal: Path) -> None:
    tab.open(normal, width=width)
    boxes = "[...document.querySelectorAll('.plot text')].map(t => [t.textContent, t.getBoundingClientRect(), t.closest('.axes').getBoundingClientRect()])"
    cut = f"{boxes}.filter(([, a, b]) => a.left < b.left || a.right > b.right || a.top < b.top || a.bottom > b.bottom).map(c => c[0])"
    assert tab.evaluate(f"{boxes}.length") > 3
    assert tab.evaluate(cut) == []


@pytest.mark.parametrize("width", [700, 1000, 1400])
def test_the_five_slowest_dots_have_names_apart(width: int, tab: Page, normal: Path) -> None:
    tab.open(normal, width=width)
    labels = "[...document.querySelectorAll('.plot text')].filter(t => t.textContent.startsWith('#'))"
    slowest = [
        int(place)
        for place, op in zip(column(tab, "node-table", 0), column(tab, "node-table", 2), strict=True)
        if op == "QLinearConv"
    ]
    assert sorted(tab.evaluate(f"{labels}.map(t => parseInt(t.textContent.slice(1)))")) == sorted(slowest[:5])
    names = tab.evaluate(f"{labels}.map(t => t.textContent.split(' ')[1])")
    assert all(name.endswith("Conv_quant") for name in names)
    assert len(set(names)) == 5, "shortened, but not alike"
    boxes = tab.evaluate(
        f"{labels}.map(t => t.getBoundingClientRect()).map(r => [r.left, r.top + 2, r.right, r.bottom - 2])"
    )
    over = [(a, b) for n, a in enumerate(boxes) for b in boxes[:n]
            if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]  # fmt: skip
    assert over == []


def test_titles_stand_beside_their_axes(tab: Page, normal: Path) -> None:
    tab.open(normal, width=1000)
    plot, up, across = (
        tab.evaluate(f"(() => {{ const r = document.querySelector('{name}').getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] }})()")
        for name in (".plot", ".up", ".across")
    )  # fmt: skip
    assert up[2] <= plot[0], "left of the plot"
    assert up[3] - up[1] > up[2] - up[0], "upright"
    assert plot[3] <= across[1] <= plot[3] + 40, "just below"


def test_a_dot_says_what_it_is(tab: Page, normal: Path) -> None:
    """When pointed at, and when the keyboard leads to it; the next key leads to the next slower node."""
    tab.open(normal)
    place = "(() => { const c = document.querySelector('.plot circle'); c.scrollIntoView({block: 'center'}); const r = c.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()"
    x, y = tab.evaluate(place)
    told = "document.querySelector('.plot').closest('figure').querySelector('.told').textContent"
    before = tab.evaluate(told)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    pointed = tab.evaluate(told)
    assert pointed != before
    number = pointed.partition(" ")[0].removeprefix("#")
    assert f"#{number} /features/{number}/conv/Conv_quant, QLinearConv · " in pointed
    assert f"t{number} uint8 [1,96,56,56]" in pointed
    assert "GMAC/s" in pointed
    tab.evaluate(
        "document.querySelector('[data-table=node-table] input').focus(); document.querySelector('.plot a').focus()"
    )
    press(tab, "ArrowDown", 40)
    assert tab.evaluate("document.activeElement.getAttribute('href')") != f"#n{number}"
    assert tab.evaluate(told).startswith(
        tab.evaluate("document.activeElement.getAttribute('href')").replace("n", "") + " "
    )


def zoomed(tab: Page) -> float:
    width: float = tab.evaluate("document.querySelector('.map').getBoundingClientRect().width")
    return width


FOCUSED = "document.activeElement.getAttribute('href')"


def test_the_keyboard_finds_follows_and_zooms_in_the_graph(tab: Page, normal: Path) -> None:
    tab.open(normal)
    tab.evaluate("document.querySelector('.tools input').focus()")
    tab.call("Input.insertText", text="qlinearadd")
    adds = [f"#n{n}" for n in range(COUNT) if n % 3 == 1]
    assert tab.evaluate("document.querySelector('.tools output').textContent") == f"{len(adds)} of {COUNT}"
    press(tab, "Enter", 13, "\r")
    assert tab.evaluate(FOCUSED) == adds[0]
    press(tab, "ArrowDown", 40)
    assert tab.evaluate(FOCUSED) == adds[1], "the next one that was found"
    told = tab.evaluate("document.querySelector('.map').closest('figure').querySelector('.told').textContent")
    assert "#4 /features/4/conv/Conv_quant" in told
    assert "t4 uint8 [1,96,56,56]" in told
    press(tab, "ArrowRight", 39)
    assert tab.evaluate(FOCUSED) == "#n5", "along the edge"
    press(tab, "ArrowLeft", 37)
    assert tab.evaluate(FOCUSED) == "#n4"
    before = zoomed(tab)
    press(tab, "+", 187, "+")
    assert zoomed(tab) == pytest.approx(1.25 * before, rel=0.01)
    press(tab, "0", 48, "0")
    box = "document.querySelector('.map').closest('.scroll')"
    assert tab.evaluate(f"{box}.scrollWidth <= {box}.clientWidth && {box}.scrollHeight <= {box}.clientHeight")
    press(tab, "-", 189, "-")
    press(tab, "Enter", 13, "\r")
    assert tab.evaluate("document.querySelector(':target').cells[0].textContent") == "4"


def test_one_stop_of_the_tab_key_for_each_picture(tab: Page, normal: Path) -> None:
    tab.open(normal)
    stops = "[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg a')].filter(a => a.tabIndex === 0).length)"
    assert tab.evaluate(stops) == [1, 1, 1]
    tab.evaluate("document.querySelectorAll('.map a')[7].focus()")
    assert tab.evaluate(stops) == [1, 1, 1]
    assert tab.evaluate("document.querySelectorAll('.map a')[7].tabIndex") == 0


def test_the_graph_has_colours_by_time_and_by_noise(tab: Page, odd: Path) -> None:
    tab.open(odd)
    fills = "[...document.querySelectorAll('.map rect')].map(r => getComputedStyle(r).fill)"
    by_time = tab.evaluate(fills)
    choice = "document.querySelector('.tools select')"
    tab.evaluate(f"{choice}.value = 'sqnr'; {choice}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    assert tab.evaluate(fills) != by_time
    assert "31.2 dB" in tab.evaluate("document.querySelector('.map').closest('figure').innerText")
    assert tab.evaluate("document.querySelector('.legend.time').offsetParent === null")


@pytest.mark.parametrize("name", ["normal", "odd"])
def test_names_in_the_graph_are_inside_their_boxes(name: str, tab: Page, request: pytest.FixtureRequest) -> None:
    tab.open(request.getfixturevalue(name), scripts=False)
    right = "[...document.querySelectorAll('.map text')].map(t => [t.getBoundingClientRect().right, t.parentNode.querySelector('rect').getBoundingClientRect().right, t.textContent])"
    found = tab.evaluate(right)
    assert found
    assert [text for end, edge, text in found if end > edge] == []


def test_a_graph_of_a_thousand_nodes(tab: Page, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(full_page(1000), encoding="utf-8")
    tab.open(path)
    assert tab.evaluate("document.querySelectorAll('.map rect').length") == 1000
    tab.evaluate("document.querySelector('.tools input').focus()")
    tab.call("Input.insertText", text="/987/")
    press(tab, "Enter", 13, "\r")
    inside = "(() => { const a = document.activeElement.querySelector('rect').getBoundingClientRect(), b = document.activeElement.closest('.scroll').getBoundingClientRect(); return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom && a.bottom <= innerHeight })()"
    assert tab.evaluate(FOCUSED) == "#n987"
    assert tab.evaluate(inside), "it is scrolled to"
    press(tab, "0", 48, "0")
    assert tab.evaluate("document.querySelector('.map').getBoundingClientRect().right") < 1400
    assert tab.complaints == []


def edge(tab: Page, box: str, end: bool) -> str:
    """A picture of the right edge of a box scrolled to its start or end, where no text is: just below a row's line."""
    x, y = tab.evaluate(
        f"(() => {{ const b = document.querySelector('{box}'); b.scrollIntoView({{block: 'center'}}); b.scrollLeft = {'1e6' if end else '0'};"
        "const r = b.getBoundingClientRect(), t = b.querySelector('tbody tr').getBoundingClientRect(); return [r.right, t.top + 1 + scrollY] })()"
    )
    clip = {"x": x - 10, "y": y, "width": 8, "height": 1, "scale": 1}
    return str(tab.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])


def test_no_column_is_cut_in_a_window_of_1000_pixels(tab: Page, normal: Path) -> None:
    tab.open(normal, width=1000)
    cut = "[...document.querySelectorAll('.scroll:has(> table)')].filter(b => b.scrollWidth > b.clientWidth).length"
    assert tab.evaluate(cut) == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 800])
def test_a_shadow_says_that_a_table_goes_on(width: int, dark: bool, tab: Page, normal: Path) -> None:
    tab.open(normal, width=width, dark=dark)
    wide = "#node-table .scroll"
    assert tab.evaluate(f"(b => b.scrollWidth > b.clientWidth)(document.querySelector('{wide}'))")
    assert edge(tab, wide, end=False) != edge(tab, wide, end=True), "none where nothing follows"
    tab.open(normal, width=1400, dark=dark)
    assert tab.evaluate(f"(b => b.scrollWidth <= b.clientWidth)(document.querySelector('{wide}'))")
    assert edge(tab, wide, end=False) == edge(tab, wide, end=True)


def test_bars_are_below_the_digits(tab: Page, normal: Path) -> None:
    tab.open(normal)
    sizes = "[...document.querySelectorAll('td[style]')].map(cell => getComputedStyle(cell).backgroundSize)"
    found = tab.evaluate(sizes)
    assert found
    assert all(size.endswith(" 3px") for size in found)


def test_a_link_to_a_node_leads_to_its_row(tab: Page, normal: Path) -> None:
    tab.open(normal)
    tab.evaluate("document.querySelector('a[href=\"#n3\"]').click()")
    assert tab.evaluate("document.querySelector(':target').cells[0].textContent") == "3"


def test_the_print_has_all_rows(tab: Page, normal: Path) -> None:
    tab.open(normal)
    tab.call("Emulation.setEmulatedMedia", media="print")
    cut = "[...document.querySelectorAll('.scroll')].some(b => b.scrollHeight > b.clientHeight + 2)"
    hidden = tab.evaluate("getComputedStyle(document.querySelector('.filter')).display")
    found = tab.evaluate(cut)
    tab.call("Emulation.setEmulatedMedia", media="")
    assert hidden == "none"
    assert not found
