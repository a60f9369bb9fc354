"""Whatever ends a call, or damages what it kept: going on gives the bytes of a call that nothing disturbed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from evaluating.conftest import MODELS, Digits
from helpers.cli import call, fixes, says

from qrun.evaluating.store import Store

MODEL = MODELS / "qdq" / "model.onnx"
SAMPLES = 5 * 256 + 17


@pytest.fixture(scope="module")
def many(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of an evaluation of five chunks and a bit."""
    folder = tmp_path_factory.mktemp("many")
    np.save(folder / "x.npy", digits.images[:SAMPLES])
    np.save(folder / "y.npy", digits.labels[:SAMPLES])
    return [str(MODEL), "-i", str(folder / "x.npy"), "--labels", str(folder / "y.npy")]


@pytest.fixture(scope="module")
def undisturbed(many: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    assert call("eval", *many, "-o", folder, "-j", "1").code == 0
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def started(many: list[str], *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "qrun", "eval", *many, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def wait_for(folder: Path, chunks: int, running: subprocess.Popen[bytes]) -> None:
    """Until so many chunks are finished, or the call has ended."""
    for _ in range(6000):
        if len(list(folder.glob("chunk-*.npz"))) >= chunks or running.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError("it does not go on")


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize(("chunks", "jobs"), [(0, 1), (1, 1), (3, 1), (1, 2), (4, 2)])
def test_a_killed_call_is_gone_on_with(
    many: list[str], undisturbed: dict[str, bytes], chunks: int, jobs: int, tmp_path: Path
) -> None:
    running = started(many, "-o", "out", "-j", str(jobs))
    wait_for(tmp_path / "out", chunks, running)
    running.kill()
    running.communicate()
    assert call("eval", *many, "-o", "out", "--resume", "-j", "1").code == 0
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc, as Linux has it")
def test_a_killed_worker_costs_nothing(many: list[str], undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    running = started(many, "-o", "out", "-j", "2")
    wait_for(tmp_path / "out", 1, running)
    victims = [each for each in children(running.pid) if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]
    assert victims or running.poll() is not None
    for victim in victims[:1]:
        os.kill(victim, signal.SIGKILL)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc, as Linux has it")
def test_workers_end_with_the_call(many: list[str], tmp_path: Path) -> None:
    running = started(many, "-o", "out", "-j", "2")
    wait_for(tmp_path / "out", 1, running)
    workers = children(running.pid)
    running.kill()
    running.communicate()
    for _ in range(1000):
        if not any(Path(f"/proc/{each}").exists() for each in workers):
            return
        time.sleep(0.02)
    raise AssertionError("workers live on")


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    else:
        data[int(how)] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut off", "empty", "gone", "0", "40", "-1", "-70"])
def test_a_damaged_chunk_is_made_again(
    many: list[str], undisturbed: dict[str, bytes], how: str, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    for name, data in undisturbed.items():
        (out / name).write_bytes(data)
    damage(out / "chunk-000002.npz", how)
    found = call("eval", *many, "-o", out, "--resume", "--json", "-j", "1").json
    assert found["resumed"] == SAMPLES - 256
    assert contents(out) == undisturbed


@pytest.mark.parametrize("gap", [0, 2])
def test_every_kept_chunk_is_read_once(
    many: list[str], undisturbed: dict[str, bytes], gap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out := tmp_path / "out").mkdir()
    for name, data in undisturbed.items():
        (out / name).write_bytes(data)
    damage(out / f"chunk-{gap:06}.npz", "gone")
    seen: Counter[int] = Counter()
    plain = Store.read
    monkeypatch.setattr(Store, "read", lambda store, index: (seen.update([index]), plain(store, index))[1])
    found = call("eval", *many, "-o", out, "--resume", "--json", "-j", "1").json
    assert found["resumed"] == SAMPLES - 256
    assert set(seen.values()) == {1}
    assert set(seen) == {int(name[6:12]) for name in undisturbed if name.startswith("chunk-")} - {gap}
    assert contents(out) == undisturbed


def test_a_limit_of_file_sizes_loses_only_the_chunk_in_work(
    many: list[str], undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """As a full disk does, writing fails in the middle of a chunk."""
    limit = len(undisturbed["chunk-000000.npz"]) - 100

    def cap() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-B", "-m", "qrun", "eval", *many, "-o", "out", "-j", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=cap, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "error QR008 cannot-write" in ended.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"eval.json"}
    assert call("eval", *many, "-o", "out", "--resume", "-j", "1").code == 0
    assert contents(tmp_path / "out") == undisturbed


def test_results_of_another_call_are_not_gone_on_with(
    many: list[str], undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    for name, data in undisturbed.items():
        (out / name).write_bytes(data)
    (fix, _) = fixes(call("eval", *many, "-o", out), 2, "QR005")
    assert fix == "add --resume to continue"
    ended = call("eval", *many, "-o", out, "--resume", "--limit", "300")
    assert "limit differs" in ended.err
    assert ended.code == 2
    other = call("eval", MODELS / "dynamic" / "model.onnx", *many[1:], "-o", out, "--resume")
    assert "models differs" in other.err


def test_memory_does_not_grow_with_the_samples(tmp_path: Path, digits: Digits) -> None:
    """Peak memory of the process, in which one thread runs everything, of 2,000 and of 20,000 samples."""
    peaks = []
    for count in (2_000, 20_000):
        np.save(f"x{count}.npy", np.resize(digits.images, (count, 1, 8, 8)))
        np.save(f"y{count}.npy", np.resize(digits.labels, count))
        code = ("import resource, sys; from qrun.cli import main; main(sys.argv[1:]); "
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")  # fmt: skip
        command = [
            sys.executable,
            "-c",
            code,
            "eval",
            str(MODEL),
            "-i",
            f"x{count}.npy",
            "--labels",
            f"y{count}.npy",
            "-j",
            "1",
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(ended.stdout.split()[-1]))
    assert peaks[1] < peaks[0] + 8 * 1024


def test_a_folder_that_cannot_be_written(many: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    says(call("eval", *many, "-o", tmp_path / "file"), 2, "error QR008")
