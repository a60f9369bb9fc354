"""What installs qrun agrees: pyproject.toml, the CI matrix, the image, the conda recipe, the hook and the pages."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, conv_model, quantize_model, save

import qrun

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLATFORMS = (ROOT / "docs/internals/platforms.md").read_text(encoding="utf-8")
MATRIX = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
RELEASE = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
SUITE_MB, REST_MB = 2.4, 2.0
"""The most megabytes of the wheel: of the conformance suite, and of everything else."""
BAD = np.full(3, 0.01, np.float32)
"""Scales of a weight with another number of channels."""


def found(pattern: str, text: str) -> str:
    """The first group of the only match."""
    (match,) = re.findall(pattern, text, re.M)
    return str(match)


def requirement(package: str) -> str:
    (one,) = (text for text in PROJECT["dependencies"] if re.match(rf"{package}\b", text))
    return str(one)


def test_the_matrix_the_classifiers_and_the_pages_name_the_same_pythons() -> None:
    tested = re.findall(r'"(3\.\d+t?)"', found(r"^ +python: \[(.*)\]$", MATRIX))
    pythons = [name for name in tested if not name.endswith("t")]
    stated = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d", c)]
    assert pythons == stated
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert f"Python {pythons[0]} to {pythons[-1]}" in PLATFORMS
    assert f"Python {pythons[0]} to {pythons[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {tested[-1]} (free-threaded)" in PLATFORMS
    major, minor = pythons[-1].split(".")
    assert f"python_version < '{major}.{int(minor) + 1}'" in requirement("llvmlite")
    assert f'python-version: "{pythons[0]}"' in found(r"(?s)^  lowest:\n(.*?)^  \w", MATRIX)


def test_llvmlite_is_left_out_where_the_pages_say() -> None:
    markers = pytest.importorskip("packaging.markers")
    marker = markers.Marker(requirement("llvmlite").partition(";")[2])
    machines = {
        ("linux", "x86_64"): "Linux on x86-64",
        ("linux", "aarch64"): "Linux on AArch64",
        ("darwin", "arm64"): "macOS on Apple silicon",
        ("win32", "AMD64"): "Windows on x86-64",
        ("darwin", "x86_64"): "Intel Macs",
        ("win32", "ARM64"): "Windows on ARM",
        ("linux", "riscv64"): "other CPUs",
    }
    rows = [row.split("|")[1:3] for row in PLATFORMS.splitlines() if row.startswith("| ")]
    (without,) = (system for system, state in rows if "leaves it out" in state)
    for (machine, name), python in product(machines.items(), ("3.11", "3.14", "3.15")):
        platform, kind = machine
        installed = marker.evaluate({"sys_platform": platform, "platform_machine": kind, "python_version": python})
        row = next(system for system, _ in rows if name in system)
        assert installed == (row != without and f"Python {python}" not in without), (name, python)


def test_the_image_and_the_recipe_have_the_version_and_the_dependencies() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert found(r'image\.version="([^"]+)"', image) == qrun.__version__
    bases = set(re.findall(r"^FROM python:(3\.\d+)-slim\b", image, re.M))
    assert len(bases) == 1
    assert f'"{bases.pop()}"' in MATRIX
    assert "\nUSER qrun\n" in image
    recipe = (ROOT / "conda/meta.yaml").read_text(encoding="utf-8")
    assert found(r"^  version: (.*)$", recipe) == qrun.__version__
    listed = found(r"(?s)^  run:\n(.*?)^test:", recipe)
    wanted = [f"python{PROJECT['requires-python']}", *(text.partition(";")[0] for text in PROJECT["dependencies"])]
    assert [line.replace(" ", "") for line in re.findall(r"^    - (.*)$", listed, re.M)] == wanted
    commands = dict(re.findall(r"^    - ([\w-]+) = (.*)$", recipe, re.M))
    assert commands == PROJECT["scripts"]


def test_a_release_is_published_by_its_workflow_without_a_token() -> None:
    assert "id-token: write" in RELEASE
    assert "attestations: true" in RELEASE
    assert "secrets." not in RELEASE
    page = (ROOT / "docs/internals/releasing.md").read_text(encoding="utf-8")
    for name in ("Dockerfile", "conda/meta.yaml", "qrun/__init__.py", ".github/workflows/release.yml", ".ci/run"):
        assert f"`{name}`" in page
        assert (ROOT / name).exists()
    assert f"environment: {found(r'create the environment `(.*)`', page)}" in RELEASE
    assert f"git tag -f {found(r'`(v[0-9]+)`, which users', page)} " in RELEASE


def test_the_wheel_is_small(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    (path,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        suite = sum(info.compress_size for info in archive.infolist() if info.filename.endswith(".zip"))
    assert suite <= SUITE_MB * 1e6
    assert Path(path).stat().st_size - suite <= REST_MB * 1e6


def pre_commit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("pre_commit")
    command = [sys.executable, "-m", "pre_commit", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def repository(folder: Path, **models: object) -> Path:
    """A git repository with these models, added but not committed."""
    folder.mkdir()
    for name, model in models.items():
        save(model, folder / f"{name}.onnx")  # type: ignore[arg-type]
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder


def test_pre_commit_runs_the_hook_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With qrun installed beside pre-commit, as docs/ci.md has it."""
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"^```yaml\n(repos:\n.*?)^```$", page, re.M | re.S)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    for name, model, code in (("good", quantize_model(), 0), ("bad", conv_model(w_scale=BAD), 1)):
        folder = repository(tmp_path / name, **{name: model})
        (folder / ".pre-commit-config.yaml").write_text(config)
        ended = pre_commit(folder, "run", "--all-files")
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert ("QR301" in ended.stdout) == bool(code)


def test_pre_commit_installs_the_hook_from_this_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As others use it: pre-commit makes an environment of its own, for which it needs a package index."""
    assert pre_commit(tmp_path, "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")).returncode == 0
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "home"))
    folder = repository(tmp_path / "models", good=quantize_model(), bad=conv_model(w_scale=BAD))
    ended = pre_commit(folder, "try-repo", str(ROOT), "qrun-check", "--files", "good.onnx")
    if "Could not find a version" in ended.stdout:
        pytest.skip("no package index")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ended = pre_commit(folder, "try-repo", str(ROOT), "qrun-check", "--all-files")
    assert ended.returncode == 1
    assert "bad.onnx: /stem/conv: error QR301" in ended.stdout
