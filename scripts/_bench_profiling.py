"""What profiling costs: plain runs of a session, and those in which ``qrun profile`` times nodes, in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
from _bench_cases import Networks
from _engines import named

WARM, PENDING = 5, 100
KINDS = ("run", "profiled")


def overhead(networks: Networks, name: str, kind: str, threads: int, rounds: int, cache: str) -> dict[str, Any]:
    """Milliseconds of `rounds` runs of each kind, from call to return, every other round the other kind first.

    The profiled runs keep what the profile is made of, and read it after some runs, as `qrun profile` does.
    """
    from qrun import Session

    session = Session(networks.path(name, kind), backend="native", threads=threads, cache=cache)
    feeds = named(networks.input(name), session.inputs[0].name)
    kept: list[Any] = []
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: session.run(feeds),
        "profiled": partial(session.execute, feeds, observe=False),
    }
    for _ in range(WARM):
        for call in calls.values():
            call()
    taken: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for way in KINDS if number % 2 else reversed(KINDS):
            start = perf_counter_ns()
            made = calls[way]()
            if way == "profiled":
                kept.append(made.events)
            taken[way].append(perf_counter_ns() - start)
        if len(kept) == PENDING:
            [[event.duration_ns for event in events] for events in kept]
            kept.clear()
    found = {f"{way}_ms": {"min": min(t) / 1e6, "median": median(t) / 1e6} for way, t in taken.items()}
    share = median(np.array(taken["profiled"]) / np.array(taken["run"])) - 1
    least = min(taken["profiled"]) / min(taken["run"]) - 1
    return {"model": name, "format": kind, "threads": threads, "rounds": rounds, **found,
            "overhead": {"min": least, "median": float(share)}}  # fmt: skip
