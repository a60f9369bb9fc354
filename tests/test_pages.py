"""The pages of docs/: what they name exists, and what they quote is what stands there."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import onnx.defs
import pytest
from helpers.disagreements import CASES
from helpers.support import MS
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import qrun
from qrun.ops import REGISTRY, OpDef
from qrun.report.catalog import catalog
from qrun.report.ops import supported_operators

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/internals/numerics.md", "docs/internals/exactness.md")
"""Pages of numbered sections."""
TOURS = {"docs/internals/architecture.md": 15, "docs/internals/engine.md": 60}
"""Pages that lead through the code, and how many places in it they name at least."""
LABELS = {
    "docs/internals/numerics.md": ("- **Clause**: ", "- **Others**: ", "- **Case**: "),
    "docs/internals/exactness.md": ("**Statement.** ", "**Carried by** ", "**Attacked by** "),
}
"""What every numbered section has, in this order."""
NUMBERED = re.compile(r"### ([A-Z]\d+) (.+)\n")
NAMED = re.compile(r"`((?:tests|qrun|docs|scripts)/[\w/.]+\.\w+)(?:::([\w.]+))?`")
IDS = {case.id for case in CASES} | {"R14", "R15"}


def place(file: str) -> Path:
    """Where a file that is named from the root lies; the package may be installed elsewhere."""
    return Path(qrun.__file__).parent.parent / file if file.startswith("qrun/") else ROOT / file


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def sections(page: str, start: str) -> Iterator[tuple[str, str]]:
    """(heading, what stands below it) for headings that start so."""
    for part in re.split(r"^(?=#{2,3} )", text(page), flags=re.M):
        heading, _, body = part.partition("\n")
        if heading.startswith(start):
            yield heading.removeprefix(start).strip(), body


@cache
def definitions(path: Path) -> frozenset[str]:
    """Functions, classes, their members, and names that are assigned, of a Python file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= set(names(node))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for member in node.body for name in names(member)}
    return frozenset(found)


def names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def is_quantized(definition: OpDef) -> bool:
    """Whether it takes or makes zero points."""
    told = (definition.__doc__ or "", *(param.name for param in definition.inputs))
    return any("zero_point" in name for name in told)


QUANTIZED = sorted(
    {op_type for (domain, op_type), found in REGISTRY.items() if domain in ("", MS) and any(map(is_quantized, found))}
)
"""Those of ONNX and onnxruntime; docstrings alone describe what quantizers have of their own."""


@pytest.mark.parametrize("page", [*PAGES, *TOURS])
def test_files_functions_and_tests_exist(page: str) -> None:
    found = NAMED.findall(text(page))
    assert len(found) > TOURS.get(page, 60)
    missing = [
        f"{file}::{name}" if name else file
        for file, name in found
        if not place(file).is_file() or (name and name not in definitions(place(file)))
    ]
    assert missing == []
    assert [
        name for file, name in found if file.startswith("tests/test_") and name and not name.startswith("test_")
    ] == []


@pytest.mark.parametrize("page", [*PAGES, *TOURS])
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text(page)):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.is_file(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, anchor


def test_kernels_of_the_engines_page_have_ir() -> None:
    """The example that prints one runs."""
    (code,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", text("docs/internals/engine.md"), re.S)
        if "kernel_text" in code
    )
    told = io.StringIO()
    with redirect_stdout(told):
        exec(textwrap.dedent(code), {})
    assert "define i64 @kernel" in told.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_every_section_has_all_parts(page: str) -> None:
    numbers = [number for number, _ in NUMBERED.findall(text(page))]
    assert len(numbers) > 20
    assert len(set(numbers)) == len(numbers), numbers
    for heading, body in sections(page, "### "):
        body = " ".join(body.split()) + " "
        places = [body.find(label) for label in LABELS[page]]
        assert -1 not in places, heading
        assert places == sorted(places), heading
        assert "`tests/" in body[places[-1] :] or IDS & set(re.findall(r"`([^`]+)`", body[places[-1] :])), heading


@pytest.mark.parametrize("page", PAGES)
def test_decisions_that_are_referred_to_exist(page: str) -> None:
    """Those of this page; what stands in quotes, or leads to another page, is something else."""
    known = {number for number, _ in NUMBERED.findall(text(page))}
    referred = set(re.findall(r"(?<![\w`/*\[])([A-Z]\d{1,2})(?![\w`*])", text(page)))
    assert len(referred) > 10 or page == "docs/internals/exactness.md"
    assert referred <= known


def test_cases_and_codes_exist() -> None:
    for heading, body in sections("docs/internals/numerics.md", "### "):
        ids = set(re.findall(r"`([ORS]\d+[\w-]*)`", body))
        assert ids <= IDS, heading
    for page in PAGES:
        assert set(re.findall(r"QR\d{3}", text(page))) <= set(catalog())


def test_every_disagreement_is_a_case() -> None:
    """But R14 and R15, which have a test of their own."""
    told = set(re.findall(r"`([ORS]\d+[\w-]*)`", text("docs/internals/numerics.md")))
    assert told >= {case.id for case in CASES}


def test_every_quantized_operator_has_a_section() -> None:
    assert {"QLinearConv", "QuantizeLinear", "MatMulInteger", "DynamicQuantizeLinear", "QGemm"} <= set(QUANTIZED)
    told = [heading for heading, _ in sections("docs/internals/numerics.md", "## ") if not heading[0].isdigit()]
    assert sorted(told) == sorted({*QUANTIZED, "NhwcMaxPool"})


@pytest.mark.parametrize("op_type", QUANTIZED)
def test_formulas_are_those_of_the_docstrings(op_type: str) -> None:
    docs = [
        inspect.cleandoc(d.__doc__ or "") for (_, name), found in REGISTRY.items() if name == op_type for d in found
    ]
    told = {line.strip() for doc in docs for line in doc.splitlines()}
    body = dict(sections("docs/internals/numerics.md", "## "))[op_type]
    (block,) = re.findall(r"```text\n(.*?)```", body, re.S)
    assert [line for line in block.splitlines() if line.strip() not in told] == []
    formulas = {line.strip() for doc in docs for line in doc.splitlines() if line.startswith("    ")}
    assert formulas == {line.strip() for line in block.splitlines()}


@pytest.mark.parametrize("op_type", QUANTIZED)
def test_versions_are_those_that_run(op_type: str) -> None:
    body = dict(sections("docs/internals/numerics.md", "## "))[op_type]
    runs = {s.op.rpartition("::")[0]: list(map(str, s.versions)) for s in supported_operators() if s.op_type == op_type}
    paragraph = next(part for part in body.split("\n\n") if part.startswith(("Version", "com.microsoft")))
    versions, _, contrib = " ".join(paragraph.split()).partition("com.microsoft ")
    assert re.findall(r"\d+", versions.partition(". ")[0]) == runs.get("", [])
    assert re.findall(r"^\d+", contrib) == runs.get("com.microsoft", [])


def test_quotations_stand_in_the_specification() -> None:
    """Whatever stands in quotes in a clause, unless it is of another page of ONNX."""
    found, told = 0, plain(" ".join(specification()))
    for heading, body in sections("docs/internals/numerics.md", "### "):
        clause = plain(body.partition("- **Clause**: ")[2].partition("- **Others**: ")[0])
        for quoted in re.findall(r'"([^"]+)"', clause):
            for part in filter(None, map(str.strip, quoted.split("..."))):
                found += 1
                assert part in told, (heading, part)
    assert found > 30


def specification() -> Iterator[str]:
    """The texts of ONNX, and those that onnxruntime has of com.microsoft."""
    of_ort = (known for known in get_all_operator_schema() if known.domain == MS)
    for known in (*onnx.defs.get_all_schemas_with_history(), *of_ort):
        yield known.doc or ""
        yield from (part.description for part in (*known.inputs, *known.outputs, *known.attributes.values()))


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("'", "").split())


def test_runtimes_are_those_that_the_tests_have() -> None:
    pinned = dict(re.findall(r'"(onnx|onnxruntime)==([\d.]+)"', text("pyproject.toml")))
    intro = text("docs/internals/numerics.md").partition("\n## ")[0]
    assert f"onnxruntime {pinned['onnxruntime']}" in intro
    assert f"onnx.reference {pinned['onnx']}" in intro
