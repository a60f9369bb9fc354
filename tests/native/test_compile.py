"""Instruction sets, compilation, and the cache of compiled kernels."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from qrun.native import Conv, Declined, Engine, Target, available
from qrun.native.cache import ObjectCache
from qrun.native.compile import Kernels
from qrun.native.isa import ISAS, choose
from qrun.native.spec import KernelSpec

F = np.float32
W = np.ones((4, 4, 1), np.int8)
X = np.ones((1, 4, 3), np.uint8)


def run(engine: Engine) -> np.ndarray:
    target = Target(F(1), np.ones(1, F), F(1), "u8", 0)
    return Conv(engine, X.shape, W, x_zero_point=np.uint8(0), target=target).run(X)


def test_the_best_instruction_set_is_chosen_unless_named() -> None:
    usable = available()
    assert not usable[-1].needs
    assert choose() == usable[0]
    assert all(choose(isa.name) == isa for isa in usable)


def test_unknown_and_unusable_instruction_sets_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Declined, match=rf"'sse9' is not an instruction set; usable here: .*{available()[-1].name}"):
        choose("sse9")
    monkeypatch.setattr("qrun.native.isa.available", lambda: ISAS[-1:])
    with pytest.raises(Declined, match="'avx2' cannot run on this CPU"):
        choose("avx2")
    monkeypatch.undo()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(Declined, match="no native kernels for riscv64"):
        choose()


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
