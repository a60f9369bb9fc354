"""One engine in a new process, for start-up times and peak memory: python _fresh.py ENGINE MODEL X THREADS CACHE RUNS.

Prints JSON: seconds of the imports, of making the session, of each run; bytes of the largest resident set after the
imports and at the end. Imports nothing but numpy and the engine.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from time import perf_counter

LATER = {"qrun": ("qrun.running.session", "qrun.native")}
"""What an engine would import only when it makes a session; a module that is gone is no error."""


def main(engine: str, model: str, x: str, threads: str, cache: str, runs: str) -> None:
    start = perf_counter()
    from _engines import create, load, read

    load(engine)
    for name in LATER.get(engine, ()):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    imported, before = perf_counter() - start, peak_bytes()
    given = read(Path(x))
    start = perf_counter()
    call = create(engine, Path(model), int(threads), cache)
    created = perf_counter() - start
    taken = []
    for _ in range(int(runs)):
        start = perf_counter()
        call(given)
        taken.append(perf_counter() - start)
    print(json.dumps({"imports": imported, "create": created, "runs": taken, "base": before, "peak": peak_bytes()}))


def peak_bytes() -> int:
    """The largest resident set so far. Linux's ru_maxrss would count what the parent held when it forked."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        from _engines import one_line

        sys.exit(one_line(error))
