"""How many CPUs a run may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = CGROUP) -> int:
    """The number of CPUs that this process may use: those it may be scheduled on,
    limited by its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """CPU seconds per second that the control group grants; inf if there is no limit, or none can be read.

    Source: Linux documentation, Control Group v2, cpu.max; CFS Bandwidth Control, cpu.cfs_quota_us.
    """
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in files).split()
            if int(quota) > 0:
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf
