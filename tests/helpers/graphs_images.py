"""Random graphs with and without an image of the model: outputs, events and observations are the same.

``cd tests; python -m helpers.graphs_images ROUNDS SEED`` runs as many as one likes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from helpers.graphs import feed, random_graph, real


def image_compare(seed: int, folder: Path, cache: str | Path) -> bool:
    """Whether a kept program served; its runs, and the first one ever,
    are asserted to tell what a run step by step tells.
    folder: for the model."""
    from qrun import QrunError, Session

    model, path = random_graph(seed), folder / f"{seed}.onnx"
    onnx.save(model, path)
    options: dict[str, Any] = {
        "arith": "ort" if seed % 4 == 0 else "exact", "fuse": seed % 3 != 0, "threads": 1 + (seed % 3 if real(seed) else seed % 2)
    }  # fmt: skip
    feeds = [feed(model, seed), feed(model, seed + 1)]
    first = Session(path, cache=cache, **options)
    try:
        began = first.execute(feeds[0])
    except QrunError:
        return False
    assert told(began) == told(Session(model, cache=cache, **options).execute(feeds[0])), f"seed {seed}, first"
    first.run_observed(feeds[0])
    Session(path, cache=cache, **options).run(feeds[0])
    used = False
    for given in feeds:
        kept = Session(path, cache=cache, **options)
        got = kept.execute(given)
        want = Session(model, cache=cache, **options).execute(given)
        assert told(got) == told(want), f"seed {seed}"
        for outputs in (kept.execute(given, observe=False).outputs, kept.run_observed(given).outputs):
            assert bits(outputs) == bits(want.outputs), f"seed {seed}"
        used |= not kept._runs.plans
    return used


def bits(outputs: Any) -> Any:
    return [(name, str(a.dtype), a.shape, a.tobytes()) for name, a in outputs.items()]


def told(result: Any) -> Any:
    """All of a run but its times."""
    events = [
        (e.index, e.inputs, e.outputs, e.macs, e.backend, sorted(map(repr, e.observations)), e.why, e.sections, e.group,
         e.node and (e.node.label, e.node.op, e.node.version, e.node.inputs, e.node.outputs))
        for e in result.events
    ]  # fmt: skip
    return bits(result.outputs), events, result.peak_bytes


def main() -> None:
    rounds, first = (*map(int, sys.argv[1:]), *(100, 0)[len(sys.argv) - 1 :])
    used, bad = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + rounds):
            try:
                used += image_compare(seed, Path(folder), Path(folder, "cache"))
            except Exception as error:
                bad += 1
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    print(f"{rounds} graphs from seed {first}, {used} served by an image, {bad} bad")


if __name__ == "__main__":
    main()
