"""The number of CPUs that a run uses unless told otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qrun.running.cpus import usable_cpus

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def group(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, HERE),
        ({"cpu.max": "max 100000\n"}, HERE),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, min(HERE, 2)),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, HERE),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "nonsense"}, HERE),
        ({"cpu.max": "1 0"}, HERE),
        ({"cpu.max": "0 100000"}, HERE),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], count: int) -> None:
    assert usable_cpus(group(tmp_path, files)) == count
