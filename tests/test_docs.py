"""What README.md, docs/ and CHANGELOG.md say is true: every command runs, and prints what stands there."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import qrun
from qrun.cli._base import COMMANDS
from qrun.cli._group import ENVIRONMENT, group
from qrun.ir.schema import ML, MS
from qrun.ops import operators
from qrun.report.codes import TOPICS
from qrun.report.ops import matching_operators, supported_operators

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import screens  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [page for page in screens.PAGES if screens.shown(page)]
FOR_USERS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPTIONAL = {"onnxruntime": r"import onnxruntime|from onnxruntime|(--against|--runtime) ort", "sklearn": r"from sklearn"}
"""Packages that some pages use, and how that shows."""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of the blocks of README.md and docs/ in this language."""
    found = re.compile(rf"^```{language}\n(.*?)^```$", re.M | re.S)
    return [(page.name, text) for page in screens.PAGES for text in found.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_print_what_the_pages_show(page: Path, tmp_path: Path) -> None:
    """python scripts/screens.py writes the pages again."""
    text = page.read_text(encoding="utf-8")
    for package, use in OPTIONAL.items():
        if re.search(use, "".join(block["text"] for block in screens.BLOCK.finditer(text))):
            pytest.importorskip(package, reason=f"{page.name} uses {package}, which is not installed")
    screens.fill(tmp_path)
    told = [f"$ {each.command}\n{what}\n{printed}" for each, printed, what in screens.differing(page, tmp_path)]
    assert told == [], "\n\n".join(told)


def test_screens_that_differ_are_seen() -> None:
    printed = "a 1.5 ms\n\nBy operator\n  x\n\nb\nc"
    assert screens.same(["a 7 us", "", "By operator", "  y", "", "b", "c"], printed)
    assert screens.same(["...", "b", "c"], printed)
    assert screens.same(["a 7 us", "...", "By operator", "...", "c"], printed)
    assert screens.same(["x (61 rules, 2 nodes)"], "x (62 rules, 2 nodes)")
    assert not screens.same(["x (61 rules, 2 nodes)"], "x (61 rules, 3 nodes)")
    assert not screens.same(["a 7 us", "", "By operator", "  y", "", "b"], printed)
    assert not screens.same(["a 7 us", "", "b", "c"], printed)
    assert not screens.same(["a 7 us", "", "By operator", "  y", "", "b", "d"], printed)


def test_times_of_a_run_are_no_difference() -> None:
    head, rest = "m.onnx  9 nodes", "\n\nChecks  1 warning"
    slow = f"{head}\n\n58.0 us a run  median of 8 plain runs\n  8 more nodes  12.1 us{rest}"
    fast = f"{head}\n\n1.2 ms a run  median of 9 plain runs\n  3 more nodes  12.1 us\n  call overhead{rest}"
    assert screens.same(slow.splitlines(), fast)
    assert not screens.same(slow.splitlines(), fast.replace("1 warning", "2 warnings"))


def test_sections_are_picked(tmp_path: Path) -> None:
    printed = "a 1\nb\n\nOutputs\n  x\n\n\nFirst difference  y\n  z\n"
    assert screens.excerpt(printed, ()) == printed
    assert screens.excerpt(printed, ("first",)) == "a 1\nb\n..."
    assert screens.excerpt(printed, ("First difference",)) == "...\nFirst difference  y\n  z"
    assert screens.excerpt(printed, ("first", "First")) == "a 1\nb\n...\nFirst difference  y\n  z"
    assert screens.excerpt(printed, ("first", "Outputs")) == "a 1\nb\n\nOutputs\n  x\n..."
    with pytest.raises(ValueError, match="no section Scores among a 1"):
        screens.excerpt(printed, ("first", "Scores"))


def test_of_a_profile_the_heads_of_its_tables_count() -> None:
    profile = screens.Shown("qrun profile m.onnx", ["7.2 us a run", "  #  node  op   time", "  1  fc    Gemm  2 us"])
    assert screens.fits(profile, "8 us a run\n   #  node   op    time\n  12  conv1  Conv  1 us\nnote: busy 3 us")
    assert not screens.fits(profile, "8 us a run\n  #  node  op   share\n  2  conv  Conv  1%")
    narrow = "8 us a run\n  #  node  time\n  2  conv  1 us\n  wider terminal or --json: op"
    assert screens.fits(profile, narrow), "which columns fit depends on the times"
    assert not screens.fits(profile, narrow.replace(": op", ": p90"))


def test_files_of_a_page_are_there_when_its_commands_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# a/made.py\nprint('made')\n```\n\n```console\n$ python a/made.py\n?\n```\n")
    assert screens.main([str(page)]) == 0
    assert page.read_text().endswith("$ python a/made.py\nmade\n```\n")
    page.write_text("<!-- show: Nothing -->\n```console\n$ qrun explain json\nold\n```\n")
    assert screens.main([str(page)]) == 1
    assert "\nold\n" in page.read_text()


def test_screens_are_written_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ qrun explain json\nold\n\n$ qrun explain exit-codes\n```\n", encoding="utf-8")
    assert screens.main(["--check", str(page)]) == 1
    assert screens.main([str(page)]) == 0
    written = page.read_text(encoding="utf-8")
    assert "exit_code" in written
    assert "\nold\n" not in written
    assert written.endswith("\n\n$ qrun explain exit-codes\n```\n")
    assert screens.main(["--check", str(page)]) == 0


def test_pages_are_short() -> None:
    assert len(README.split()) <= 700
    assert sum(page.stat().st_size for page in FOR_USERS if page.name not in ("README.md", "rules.md")) <= 165_000


@pytest.mark.parametrize("page", FOR_USERS, ids=[page.name for page in FOR_USERS])
def test_no_page_for_users_has_a_word_of_ours(page: Path) -> None:
    """`literal` is one where it is no option's value: those stand in code."""
    ours = r"\b(rooms|planted|one home|image of a model|doubts|told)\b"
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]+`", "", re.sub(r"^```\w+\n.*?^```$", "", text, flags=re.M | re.S))
    assert re.findall(ours, text, re.I) + re.findall(r"\bliteral\b", prose, re.I) == []


def test_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"(?<![\w./-])(?:models|docs|tests|scripts|qrun)/[\w./-]*\w", README))
    named |= set(re.findall(r"\]\((?!https?:)([^)#]+)", README))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    commands = [each.command for each in screens.shown(ROOT / "README.md")]
    files = {word for command in commands for word in shlex.split(command) if re.search(r"\.\w+$", word)}
    assert len(files) >= 3
    assert [name for name in sorted(files) if not (ROOT / name).is_file()] == []


def documented() -> set[tuple[str, str]]:
    """(command, option) wherever a page for users shows a command of qrun."""
    found: set[tuple[str, str]] = set()
    text = "\n".join(page.read_text(encoding="utf-8") for page in FOR_USERS)
    for line in re.findall(r"(?:^|[`$] |`)(?:\.venv/bin/)?qrun ([^`\n]+)", text, re.M):
        words = line.partition("  ")[0].partition(" #")[0].split()
        name = words[0] if words[0] in COMMANDS else "run"
        found |= {(name, word.partition("=")[0]) for word in words if re.match(r"--?[a-zA-Z]", word)}
    return found


def test_options_that_the_pages_name_exist() -> None:
    found, wrong = documented(), []
    assert len(found) > 40
    for name, option in sorted(found):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        known = {
            word for param in command.get_params(click.Context(command)) for word in param.opts + param.secondary_opts
        }
        if option not in known | {"-V", "-h"}:
            wrong.append(f"qrun {name} {option}")
    assert wrong == []


def test_every_page_stands_in_the_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^(?:.*<)?([a-z/-]+)>?$",
        "\n".join(text.partition("\n\n")[2] for text in re.findall(r"{toctree}\n(.*?)```", index, re.S)),
        re.M,
    )
    pages = (page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(listed) == sorted(page for page in pages if page != "index")


@pytest.mark.parametrize("page", screens.PAGES, ids=[page.name for page in screens.PAGES])
def test_links_to_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists() or target.endswith("LICENSE"), target


def test_what_is_typed_in_a_shell_exists() -> None:
    """Packages are installed with extras that there are; files and scripts are there."""
    lines = [line.partition("  #")[0].strip() for _, text in blocks("sh") for line in text.splitlines()]
    commands = [command for line in lines for command in line.split(" && ")]
    assert len(commands) > 12
    for command in commands:
        program, *words = shlex.split(command)
        program = program.removeprefix(".venv/bin/")
        if program == "pip":
            wanted = {word.replace("onnx-qrun", ".") for word in words[1:] if not word.startswith("-")}
            extras = {f".[{name}]" for name in EXTRAS}
            assert wanted <= {".", *extras} | {re.split(r"\W", needed)[0] for needed in EXTRAS["dev"]} | {
                "scikit-learn"
            }, command
        elif program == "uv":
            assert words[:2] == ["run", "--extra"], command
            assert words[2] in EXTRAS, command
        elif program in ("qrun", "uvx"):
            assert all((ROOT / word).is_file() for word in words if "/" in word), command
        elif words[0].startswith("scripts/"):
            assert (ROOT / words[0]).is_file(), command
        else:
            assert words[:2] in (["-m", "pytest"], ["-m", "venv"], ["-m", "sphinx"]), command


def test_the_first_section_of_the_readme_has_two_commands() -> None:
    """CI runs these lines as they stand; docs/index.md has the first one for Windows and uv too."""
    (unix,) = re.findall(r"^```sh\n(.*?)^```$", README.split("\n## ")[1], re.M | re.S)
    lines = unix.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("python3 -m venv .venv && ") for line in lines)
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    first, windows, uv = re.findall(r"^```(?:sh|powershell)\n(.*?)\n```$", index, re.M | re.S)
    assert first == lines[0]
    meant = first.replace("python3 -m", "python -m").replace(" && ", "; ").replace("/bin/", "/Scripts/")
    assert windows.replace("\\", "/") == meant
    assert uv == f"uvx --from . {first.partition('.venv/bin/')[2].partition('.venv/bin/')[2]}"


@pytest.mark.parametrize(("page", "said"), [("README.md", "QR409"), ("python.md", "QR409"), ("eval.md", "1.0")])
def test_python_runs(page: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screens.fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    codes = [text for name, text in blocks("python") if name == page]
    assert codes
    with redirect_stdout(io.StringIO()) as told:
        for code in codes:
            exec(code, names)
    assert said in told.getvalue()


def test_settings_are_read(tmp_path: Path) -> None:
    (text,) = (text for name, text in blocks("toml") if name == "configuration.md")
    shutil.copytree(ROOT / "models" / "digits" / "qdq", tmp_path / "legacy")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert screens.run("qrun check legacy/model.onnx --fail-on warning", tmp_path)[0] == 0
    (tmp_path / "pyproject.toml").write_text(text.replace("QR409", "QR408"), encoding="utf-8")
    assert screens.run("qrun check legacy/model.onnx --fail-on warning", tmp_path)[0] == 1


def steps(text: str) -> list[str]:
    """The commands of a workflow of GitHub or GitLab, in order, as the systems read them."""
    read = pytest.importorskip("yaml").safe_load(text)
    if "jobs" in read:
        return [step["run"] for step in read["jobs"]["check"]["steps"] if "run" in step]
    return list(read["qrun"]["script"])


WORKFLOWS = [(page, text) for page, text in blocks("yaml") if "pip install" in text]


@pytest.mark.parametrize(
    ("page", "text"), WORKFLOWS, ids=[f"{p}-{'github' if 'jobs' in t else 'gitlab'}" for p, t in WORKFLOWS]
)
def test_workflows_check_the_models_of_a_repository(page: str, text: str, tmp_path: Path) -> None:
    """Good and bad: a float model as the quantized one, and one with a warning."""
    install, check, judge = steps(text)
    assert install == "pip install ./qrun"
    files = re.findall(r"(?:codequality|junit|sarif_file): (\S+)", text)
    digits = ROOT / "models" / "digits"
    for kind, code in (("float", 0), ("qdq", 1)):
        folder = tmp_path / kind
        (folder / "models").mkdir(parents=True)
        shutil.copy(digits / "float" / "model.onnx", folder / "models" / "float.onnx")
        shutil.copy(digits / kind / "model.onnx", folder / "models" / "int8.onnx")
        shutil.copy(digits / "x.npy", folder / "test.npy")
        np.save(folder / "labels.npy", np.arange(8))
        assert screens.run(check, folder)[0] == code
        assert all((folder / name).stat().st_size for name in files)
        assert screens.run(judge, folder)[0] == 0


def test_the_pytest_example_runs(tmp_path: Path) -> None:
    (text,) = (text for name, text in blocks("python") if name == "ci.md")
    screens.fill(tmp_path)
    (tmp_path / "test_models.py").write_text(text, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "qrun.pytest_plugin", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_site_is_built(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-b",
            "html",
            "-d",
            str(tmp_path / "read"),
            str(ROOT / "docs"),
            str(tmp_path / "site"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "golden runner" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("domain", [MS, ML])
def test_the_limits_tell_how_to_list_the_operators_of_other_domains(domain: str) -> None:
    assert f"`qrun ops {domain}`" in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    listed = {f"{s.domain}::{s.op_type}" for s in matching_operators(supported_operators(), domain)}
    assert listed == {f"{home}::{name}" for home, name in operators() if home == domain}


def test_the_changelog_knows_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(qrun.__version__)}\b", changelog, re.M)


def test_the_man_page_is_that_of_the_commands() -> None:
    """docs/qrun.1 is made from the commands' help: python scripts/man.py writes it again."""
    done = subprocess.run([sys.executable, "scripts/man.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_man_page_is_read_without_complaint() -> None:
    program = shutil.which("groff")
    if program is None:
        pytest.skip("there is no groff")
    done = subprocess.run([program, "-man", "-Tutf8", "-ww", "docs/qrun.1"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    printed = re.sub(r".\x08|\x1b\[[\d;]*m", "", done.stdout)
    assert all(f"qrun {name} " in printed for name in ("run", "check", "explain"))


def test_every_variable_that_is_read_is_told() -> None:
    """In the help, in `qrun explain environment` and in docs/configuration.md."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(qrun.__file__).parent.rglob("*.py"))
    read = set(re.findall(r'"(QRUN_[A-Z_]+)"', sources))
    assert len(read) >= 5
    assert read == {name for name, _ in ENVIRONMENT}
    configuration = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(name in TOPICS["environment"] and f"`{name}`" in configuration for name in read)


def test_pages_that_are_made_are_those_of_their_sources() -> None:
    """docs/rules.md, docs/glossary.md, llms.txt and SKILL.md: python scripts/docs.py writes them again."""
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_skill_knows_every_command_exit_code_and_schema() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    yaml = pytest.importorskip("yaml").safe_load(text.split("---\n")[1])
    assert yaml["name"] == "qrun"
    assert "int8" in yaml["description"]
    assert all(f"`qrun {name}`: " in text for name in COMMANDS)
    assert all(re.search(rf"^ +{code}  ", text, re.M) for code in (0, 1, 2, 3, 4, 5, 70))
    schemas = sorted(path.name for path in (ROOT / "qrun" / "schemas").glob("*.json"))
    assert all(f"qrun/schemas/{name}" in text for name in schemas)


def test_llms_leads_to_every_page() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    linked = re.findall(r"^- \[.+\]\((\S+)\): \S", text, re.M)
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md"]
    assert sorted(linked) == sorted(pages)
