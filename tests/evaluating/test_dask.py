"""A real Dask cluster of processes: the same bytes as here, whatever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from evaluating.conftest import MODELS, Digits
from helpers.cli import call, says

from qrun.evaluating import crews
from qrun.evaluating.crews import TRIES, _tasks
from qrun.evaluating.job import Done

pytest.importorskip("distributed", reason="the package distributed is not installed")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
MODEL = MODELS / "qdq" / "model.onnx"
CLUSTER = """
import sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(3, processes=True, threads_per_worker=1, dashboard_address=None)
    print(cluster.scheduler_address, *[w.pid for w in cluster.workers.values()], flush=True)
    time.sleep(600)
"""


@pytest.fixture
def many(digits: Digits) -> list[str]:
    np.save("x.npy", np.resize(digits.images, (4000, 1, 8, 8)))
    np.save("y.npy", np.resize(digits.labels, 4000))
    return [str(MODEL), "-i", "x.npy", "--labels", "y.npy"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Cluster:
    """Scheduler and three workers in processes of their own."""

    def __init__(self, folder: Path) -> None:
        script = folder / "cluster.py"
        script.write_text(CLUSTER)
        self.process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, start_new_session=True)  # fmt: skip
        assert self.process.stdout is not None
        self.address, *pids = self.process.stdout.readline().split()
        self.workers = [int(pid) for pid in pids]

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def test_a_cluster_gives_the_same_bytes_though_a_worker_is_killed(many: list[str], tmp_path: Path) -> None:
    assert call("eval", *many, "-o", "here", "-j", "1").code == 0
    cluster = Cluster(tmp_path)
    try:
        command = [sys.executable, "-m", "qrun", "eval", *many, "-o", "there", "--dask", cluster.address]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not list((tmp_path / "there").glob("chunk-*.npz")) and running.poll() is None:
            time.sleep(0.01)
        os.kill(cluster.workers[0], signal.SIGKILL)
        _, errors = running.communicate(timeout=300)
        assert running.returncode == 0, errors
    finally:
        cluster.end()
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize("status", ["finished", "lost", "pending"])
def test_a_result_that_came_counts_whatever_became_of_its_worker(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed after its result was fetched makes the future one that is lost."""
    done, future = Done(0, 0, 1, ()), SimpleNamespace(key="0", status=status, release=lambda: None)
    client = SimpleNamespace(
        scatter=lambda *_, **__: [None], scheduler_info=lambda: {"workers": {}}, submit=lambda *_, **__: future
    )
    given: list[Any] = []

    class Completed:
        def __init__(self, **_: Any) -> None: ...

        def add(self, future: Any) -> None:
            given.append((future, done))

        def __next__(self) -> Any:
            return given.pop()

    monkeypatch.setattr("distributed.as_completed", Completed)
    assert list(_tasks(cast("Any", client), cast("Any", "job"), cast("Any", iter(["chunk"])))) == [done]


@pytest.mark.parametrize("reason", ["already forgotten", "lost dependencies"])
@pytest.mark.parametrize("times", [1, TRIES - 1, TRIES])
def test_a_task_that_the_scheduler_forgot_is_submitted_again(
    times: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the job, which was lost with its worker; not for ever."""
    from distributed.client import FutureCancelledError

    done, keys, scattered, given = Done(0, 0, 1, ()), count(), list[Any](), list[Any]()
    client = SimpleNamespace(
        scatter=lambda data, **_: scattered.append(data) or [len(scattered)],
        scheduler_info=lambda: {"workers": {}},
        submit=lambda function, shared, chunk, **_: SimpleNamespace(
            key=next(keys), shared=shared, release=lambda: None
        ),
    )

    class Completed:
        def __init__(self, **_: Any) -> None: ...

        def add(self, future: Any) -> None:
            given.append(future)

        def __next__(self) -> Any:
            future = given.pop()
            assert future.shared == future.key + 1
            return future, FutureCancelledError(future.key, reason) if future.key < times else done

    monkeypatch.setattr("distributed.as_completed", Completed)
    tasks = _tasks(cast("Any", client), cast("Any", "job"), cast("Any", iter(["chunk"])))
    if times < TRIES:
        assert list(tasks) == [done]
    else:
        with pytest.raises(FutureCancelledError):
            list(tasks)


def test_a_lost_scheduler_ends_with_what_is_finished(many: list[str], tmp_path: Path) -> None:
    assert call("eval", *many, "-o", "here", "-j", "1").code == 0
    cluster = Cluster(tmp_path)
    command = [sys.executable, "-m", "qrun", "eval", *many, "-o", "there", "--dask", cluster.address]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "there").glob("chunk-*.npz")) and running.poll() is None:
        time.sleep(0.01)
    cluster.end()
    _, errors = running.communicate(timeout=300)
    if running.returncode:  # it may have finished before
        assert running.returncode == 5, errors
        assert "error QR011" in errors
        assert "--resume" in errors
        assert "Traceback" not in errors
    assert call("eval", *many, "-o", "there", "--resume").code == 0
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_cluster_is_started_here(many: list[str]) -> None:
    found = call("eval", *many, "--limit", "600", "--dask", "local:2", "--json")
    assert found.code == 0, found.err
    assert found.json["samples"] == 600


def test_nobody_answers(many: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "ANSWERS", 0.5)
    says(call("eval", *many, "--dask", "tcp://127.0.0.1:9"), 2, "no Dask scheduler answers")
