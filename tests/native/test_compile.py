"""Instruction sets, compilation, and the cache of compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from qrun.errors import CallError
from qrun.native.emit.isa import ISAS, available, choose
from qrun.native.emit.spec import KernelSpec
from qrun.native.errors import Declined
from qrun.native.kernels.conv import Conv
from qrun.native.machine.cache import ObjectCache
from qrun.native.machine.compile import Kernels
from qrun.native.machine.engine import Engine
from qrun.native.proof.epilogue import Target

F = np.float32
W = np.ones((4, 4, 1), np.int8)
X = np.ones((1, 4, 3), np.uint8)


def run(engine: Engine) -> np.ndarray:
    target = Target(F(1), np.ones(1, F), F(1), "u8", 0)
    return engine.run(Conv(engine, X.shape, W, x_zero_point=np.uint8(0), target=target), [X])


def test_the_best_instruction_set_is_chosen_unless_named() -> None:
    usable = available()
    assert not usable[-1].needs
    assert choose() == usable[0]
    assert all(choose(isa.name) == isa for isa in usable)


def test_unknown_and_unusable_instruction_sets_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Declined, match=rf"'sse9' is not an instruction set; usable here: .*{available()[-1].name}"):
        choose("sse9")
    monkeypatch.setattr("qrun.native.emit.isa.available", lambda: ISAS[-1:])
    with pytest.raises(Declined, match="'avx2' cannot run on this CPU"):
        choose("avx2")
    monkeypatch.undo()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(Declined, match="no native kernels for riscv64"):
        choose()


@pytest.mark.parametrize(
    ("form", "waits"),
    [(("shares", "", ""), True), (("shares", "mul:0,1", "fF"), False), (("quantize", "mul", ""), False)],
)
def test_what_mostly_becomes_part_of_others_is_compiled_only_for_who_wants_it(
    form: tuple[str, str, str], waits: bool
) -> None:
    """A softmax becomes part of its attention, which has the kernel of what scales the scores as well."""
    isa, kernels, (kind, steps, operands) = choose(), Kernels(), form
    rows, out = (4 * isa.lanes, "u8") if kind == "quantize" else (isa.lanes, "f32")
    spec = KernelSpec(kind, isa.name, rows, 1, 1, steps or kind, out, False, operands=operands)
    with kernels.speculate():
        kernel = kernels.get(spec)
        deadline = time.monotonic() + (0.3 if waits else 60)
        while kernel.code.waits and time.monotonic() < deadline:
            time.sleep(0.01)
    assert kernel.code.waits == waits
    kernels.finish([kernel], isa)
    assert not kernel.code.waits


def test_a_kernel_is_compiled_once_for_all_threads() -> None:
    kernels = Kernels()
    spec = KernelSpec("dense", choose().name, 2, 1, 1, "i32", "i32", False)
    found = []
    threads = [threading.Thread(target=lambda: found.append(kernels.get(spec))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(kernel) for kernel in found}) == 1
    assert kernels.compiled == 1


def test_compiled_kernels_come_back_from_the_cache(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "objects"
    first, second = Engine.create(cache=directory), Engine.create(cache=directory)
    y = run(first)
    assert np.array_equal(run(second), y)
    assert (first.kernels.compiled, first.kernels.loaded) == (1, 0)
    assert (second.kernels.compiled, second.kernels.loaded) == (0, 1)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert len(list(directory.iterdir())) == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other", "writable", "link", "directory"])
def test_a_bad_entry_is_ignored_and_rebuilt(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "objects"
    y = run(Engine.create(cache=directory))
    (entry,) = directory.iterdir()
    content = entry.read_bytes()
    if damage == "flip":
        entry.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage in ("cut", "empty"):
        entry.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    elif damage == "other":
        cache = ObjectCache(directory)
        cache.save("another kernel", content)
        (other,) = set(directory.iterdir()) - {entry}
        os.replace(other, entry)
    elif damage == "writable":
        entry.chmod(0o666)
    elif damage == "link":
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    else:
        entry.unlink()
        entry.mkdir()
    again = Engine.create(cache=directory)
    assert np.array_equal(run(again), y)
    assert (again.kernels.compiled, again.kernels.loaded) == (1, 0)
    if damage != "directory":
        last = Engine.create(cache=directory)
        run(last)
        assert last.kernels.loaded == 1


def test_a_directory_open_to_others_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "objects"
    directory.mkdir()
    directory.chmod(0o755)
    engine = Engine.create(cache=directory)
    run(engine)
    assert engine.kernels.cache.refused == "is open to other users (mode must be 0700)"
    assert not list(directory.iterdir())
    file = tmp_path / "file"
    file.touch()
    assert ObjectCache(file).refused
    (tmp_path / "link").symlink_to(tmp_path)
    assert ObjectCache(tmp_path / "link").refused == "is not a directory"


def test_a_foreign_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "objects"
    directory.mkdir(mode=0o700)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert ObjectCache(directory).refused == "belongs to another user"


def test_no_cache_is_no_cache() -> None:
    cache = ObjectCache(None)
    cache.save("key", b"body")
    assert cache.load("key") is None
    assert cache.refused == "off"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path / "objects")
    cache.save("key", b"body")
    assert cache.load("key") == b"body"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.save("other", b"body")
    assert cache.load("other") is None
    assert len(list((tmp_path / "objects").iterdir())) == 1


def aged(path: Path, hours: float) -> None:
    """Let a file have been used so long ago."""
    then = path.stat().st_mtime_ns - int(hours * 3600 * 10**9)
    os.utime(path, ns=(then, then))


def kept(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
@pytest.mark.parametrize("where", ["entry", "directory"])
def test_a_pipe_hangs_nobody(tmp_path: Path, where: str) -> None:
    directory = tmp_path / "objects"
    if where == "directory":
        os.mkfifo(directory)
        assert ObjectCache(directory).refused
        return
    y = run(Engine.create(cache=directory))
    (entry,) = directory.iterdir()
    entry.unlink()
    os.mkfifo(entry, 0o600)
    code = "import sys\nfrom qrun.native.machine.cache import ObjectCache\ncache = ObjectCache(sys.argv[1])\n" \
        "path = cache.directory / sys.argv[2]\nfrom qrun.native.machine import cache as module\nassert module._open_own(path, 1 << 20) == -1\n"  # fmt: skip
    subprocess.run([sys.executable, "-c", code, directory, entry.name], check=True, timeout=60)
    again = Engine.create(cache=directory)
    assert np.array_equal(run(again), y)
    assert again.kernels.compiled == 1
    assert entry.is_file(), "it is replaced"


def test_entries_that_are_no_files_leave_nothing_open(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects")
    cache.save("key", b"body")
    (entry,) = (tmp_path / "objects").iterdir()
    entry.unlink()
    entry.mkdir()
    numbers = []
    for _ in range(3):
        assert cache.load("key") is None
        numbers.append(os.dup(0))
        os.close(numbers[-1])
    assert len(set(numbers)) == 1


def test_the_least_recently_used_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QRUN_CACHE_SIZE", "100kB")
    directory = tmp_path / "objects"
    cache = ObjectCache(directory)
    entries: dict[str, Path] = {}
    for place in range(7):
        before = set(directory.iterdir())
        cache.save(f"key {place}", bytes(10_000))
        (entries[f"key {place}"],) = set(directory.iterdir()) - before
    for place, path in enumerate(entries.values()):
        aged(path, 10 - place)
    assert cache.load("key 0") is not None, "now it is the one used last"
    for place in range(7, 11):
        cache.save(f"key {place}", bytes(10_000))
        assert kept(directory) <= 100_000
    alive = [place for place in range(11) if cache.load(f"key {place}") is not None]
    assert alive[0] == 0
    assert alive[-4:] == [7, 8, 9, 10]
    assert 1 not in alive
    assert 2 not in alive
    assert len(alive) >= 7


def test_the_limit_holds_for_many_small_entries_and_several_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at all entries is rare, so the limit holds on average: twice of it is never reached."""
    monkeypatch.setenv("QRUN_CACHE_SIZE", "200000")
    writers = [ObjectCache(tmp_path / "objects") for _ in range(3)]
    listed, real = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), real(path))[1])
    most = 0
    for place in range(3000):
        writers[place % 3].save(f"key {place}", bytes(1000))
        if place % 50 == 0:
            most = max(most, kept(tmp_path / "objects"))
    assert most <= 400_000
    assert kept(tmp_path / "objects") >= 100_000
    assert len(listed) < 1500, "few saves look at all entries"


def test_only_own_entries_are_counted_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QRUN_CACHE_SIZE", "20kB")
    directory = tmp_path / "objects"
    cache = ObjectCache(directory)
    (directory / "notes.txt").write_bytes(bytes(100_000))
    (directory / ("a" * 40 + ".o")).mkdir()
    (directory / ("b" * 40 + ".o")).symlink_to("notes.txt")
    (directory / ".new-0123456789abcdef").write_bytes(b"of a writer at work")
    (directory / ".new-fedcba9876543210").write_bytes(b"of a killed one")
    aged(directory / ".new-fedcba9876543210", 2)
    for place in range(4):
        cache.save(f"key {place}", bytes(9_000), ".proof" if place % 2 else ".o")
    names = {path.name for path in directory.iterdir()}
    assert {"notes.txt", "a" * 40 + ".o", "b" * 40 + ".o", ".new-0123456789abcdef"} <= names
    assert ".new-fedcba9876543210" not in names
    assert len(names) <= 6
    assert cache.load("key 3", ".proof") == bytes(9_000)


@pytest.mark.parametrize("size", ["much", "0", "-1", "nan"])
def test_a_wrong_size_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("QRUN_CACHE_SIZE", size)
    with pytest.raises(CallError, match="QRUN_CACHE_SIZE") as error:
        ObjectCache(tmp_path / "objects")
    assert error.value.code == "QR005"
    assert ("got", size) in error.value.facts
    assert ObjectCache(None).refused == "off"
