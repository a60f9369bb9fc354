"""However a judgement ends, the processes that it started end too, and its folders go."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.cli import ROOT

from qrun.conform.run import conform
from qrun.conform.runtimes import runtime
from qrun.conform.suite import Suite
from qrun.errors import CallError

SLEEPER = """import os, sys, time
open(os.path.join({folder!r}, str(os.getpid())), "w").close()
time.sleep(600)
"""
FORMS = {"cmd": " {model} {inputs} {outputs}", "batch": ""}


def sleeper(tmp_path: Path, form: str) -> tuple[str, Path]:
    """A runtime whose processes sleep, and the folder in which each makes a file whose name is its pid."""
    folder, path = tmp_path / "pids", tmp_path / "sleeper.py"
    folder.mkdir()
    path.write_text(SLEEPER.format(folder=str(folder)))
    return f"{form}:{shlex.quote(sys.executable)} {path}{FORMS[form]}", folder


def living(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if Path("/proc", path.name).exists()]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_leaves_nothing(tmp_path: Path, form: str, number: int, code: int) -> None:
    name, folder = sleeper(tmp_path, form)
    (tmp_path / "tmp").mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "qrun", "conform", "--runtime", name, "--select", "qgemm", "--jobs", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.DEVNULL,
    )
    while len(living(folder)) < 2:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(60) == code
    assert living(folder) == []
    assert list((tmp_path / "tmp").glob("qrun-*")) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("form", FORMS)
def test_a_program_that_never_answers_is_given_up_and_ends(tmp_path: Path, form: str) -> None:
    name, folder = sleeper(tmp_path, form)
    suite = Suite()
    with pytest.raises(CallError, match="this command cannot run cases") as caught:
        conform(suite, suite.select(["qgemm"]), runtime(name), jobs=2, limit=1.0)
    assert dict(caught.value.facts)["got"] == "no answer to the first 3 cases; the last: no answer in 1 s"
    assert list(folder.iterdir())
    assert living(folder) == []
