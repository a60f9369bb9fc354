"""What README.md and CHANGELOG.md say is true: every command runs, and prints what stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import qrun
from qrun.ops import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.S)
VOLATILE = re.compile(r"\d[\d.,]*( ?(ms|us|s|%|MiB|KiB|GMAC/s|runs|B)\b|%)?")


def shown() -> list[tuple[str, list[str]]]:
    """(command, lines that stand below it) of every console block."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCKS:
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    return [(command, lines) for command, lines in found if command.startswith("qrun")]


def run(command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command, comments=True)
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(("command", "lines"), shown(), ids=[c for c, _ in shown()])
def test_commands_of_the_readme(command: str, lines: list[str]) -> None:
    result = run(command)
    assert result.returncode == 0, result.stderr
    if not any(lines):
        return
    printed = result.stdout.splitlines()
    stable = [line for line in lines if line.strip()]
    until = next((i for i, line in enumerate(stable) if line.startswith(("Time", "Whole model"))), len(stable))
    timed = re.compile(r"\d[\d.]* (ms|us|s)\b|\d+ CPUs?")
    seen = {timed.sub("#", got.rstrip()) for got in printed}
    for line in stable[:until]:
        assert timed.sub("#", line.rstrip()) in seen, f"not printed: {line!r}\n{result.stdout}"
    headings = {VOLATILE.sub("#", line.split("  ")[0]) for line in stable[until:] if line[:1].isalpha()}
    assert headings <= {VOLATILE.sub("#", line.split("  ")[0]) for line in printed}


def test_the_readme_shows_the_main_job() -> None:
    commands = [c for c, _ in shown()]
    assert any("--inputs" in c for c in commands), commands


def test_links_to_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists() or (ROOT / target).name in ("LICENSE",), target


def test_the_limits_name_the_operators_of_com_microsoft() -> None:
    listed = re.search(r"Of com\.microsoft: the QLinear operators, (.*?)\.\n", README, re.S)
    assert listed is not None
    named = set(re.findall(r"\b[A-Z]\w+", listed[1]))
    assert named == {name for domain, name in REGISTRY if domain and not name.startswith("QLinear")}


def test_the_changelog_knows_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(qrun.__version__)}\b", changelog, re.M)


def test_the_page_of_rules_is_that_of_the_docstrings() -> None:
    """docs/rules.md is made from the rules: python scripts/docs.py writes it again."""
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
