"""Files are written whole or not at all: full disks, killed writers, several writers, and places that take no file."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from qrun.errors import CallError
from qrun.io.files import HIDDEN, check_file, check_folder, replace_file, write_files

POSIX = pytest.mark.skipif(os.name != "posix", reason="links, modes, pipes and signals of POSIX")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def files(text: bytes, count: int = 12) -> list[tuple[str, bytes]]:
    return [(f"output_{place}.pb", text) for place in range(count)]


def test_a_folder_is_written_with_its_parents_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    write_files(str(folder), files(b"old"))
    (folder / "README").write_text("mine")
    write_files(str(folder), files(b"new", 3))
    assert content(folder) == {**dict(files(b"old")), **dict(files(b"new", 3)), "README": b"mine"}


@pytest.mark.parametrize("missing", [True, False])
def test_an_error_in_the_middle_leaves_the_folder_as_it_was(tmp_path: Path, missing: bool) -> None:
    folder = tmp_path / "a" / "b"
    if not missing:
        write_files(str(folder), files(b"old"))

    def some() -> Iterator[tuple[str, bytes]]:
        yield from files(b"new", 5)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CallError, match="No space left") as error:
        write_files(str(folder), some())
    assert error.value.code == "QR008"
    assert error.value.fixes == ("make room there, or write elsewhere",)
    assert not (tmp_path / "a").exists() if missing else content(folder) == dict(files(b"old"))


@pytest.mark.parametrize("name", ["rename", "chmod"])
@pytest.mark.parametrize("after", range(8))
def test_an_error_while_the_files_are_moved_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    write_files(str(tmp_path), files(b"old", 3))
    real, calls = getattr(os, name), []

    def failing(*args: object) -> None:
        calls.append(args)
        if len(calls) == after + 1:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing)
        want = b"old", 3
        with suppress(CallError):
            write_files(str(tmp_path), files(b"new", 4))
            assert len(calls) <= after
            want = b"new", 4
    assert content(tmp_path) == dict(files(*want))


def test_old_and_new_files_are_never_seen_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step, what a reader finds in order is one set: killed there, the writer leaves no mixture."""
    write_files(str(tmp_path), files(b"old", 3))
    real, seen = os.rename, []

    def looking(*args: str) -> None:
        real(*args)
        found = {data for name, data in files(b"", 4) if (tmp_path / name).exists() for data in [(tmp_path / name).read_bytes()]}  # fmt: skip
        seen.append((found, (tmp_path / "output_0.pb").exists()))

    monkeypatch.setattr(os, "rename", looking)
    write_files(str(tmp_path), files(b"new", 4))
    assert len(seen) == 7
    assert all(len(found) <= 1 for found, _ in seen)
    assert [first for _, first in seen] == [False] * 6 + [True]


def test_a_folder_in_the_way_is_no_file_to_replace(tmp_path: Path) -> None:
    write_files(str(tmp_path), files(b"old", 3))
    (tmp_path / "output_1.pb").unlink()
    (tmp_path / "output_1.pb").mkdir()
    (tmp_path / "output_1.pb" / "mine").write_text("mine")
    with pytest.raises(CallError, match=r"output_1\.pb in it is a folder"):
        write_files(str(tmp_path), files(b"new", 3))
    assert (tmp_path / "output_0.pb").read_bytes() == b"old"
    assert (tmp_path / "output_1.pb" / "mine").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


KILLED = """
import os, sys
from qrun.io.files import replace_file, write_files
def files():
    for place in range(3):
        yield f"output_{place}.pb", b"new"
    print("ready", flush=True)
    sys.stdin.read()
if sys.argv[1] == "folder":
    write_files("out", files())
else:
    with replace_file("out/y.npz") as stream:
        stream.write(b"new")
        print("ready", flush=True)
        sys.stdin.read()
"""


@POSIX
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    write_files(str(out), [*files(b"old"), ("y.npz", b"old")])
    old = content(out)
    writers = []
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, what]
        writer = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        writers.append(writer)
    assert len(list(out.glob(f"{HIDDEN}*"))) == 2, "each has its own"
    with replace_file(str(out / "z.npz")) as stream:
        stream.write(b"another")
    assert len(list(out.glob(f"{HIDDEN}*"))) == 2, "those of living writers are left alone"
    for writer in writers:
        writer.kill()
        writer.communicate()
    assert {name: data for name, data in content_of_files(out).items() if name != "z.npz"} == old
    assert len(list(out.glob(f"{HIDDEN}*"))) == 2
    for _ in range(2):
        with replace_file(str(out / "z.npz")) as stream:
            stream.write(b"another")
    assert not list(out.glob(".*"))


def content_of_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_many_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                with replace_file(str(tmp_path / "y")) as stream:
                    stream.write(bytes([number]) * 1000)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(set((tmp_path / "y").read_bytes())) == 1
    assert os.listdir(tmp_path) == ["y"]


def half(path: Path, kind: type[BaseException]) -> None:
    with replace_file(str(path)) as stream:
        stream.write(b"half")
        raise kind


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "y").write_text("precious")
    for kind in (KeyboardInterrupt, ZeroDivisionError, ValueError):
        with pytest.raises(kind):
            half(tmp_path / "y", kind)
    assert content(tmp_path) == {"y": b"precious"}


@POSIX
def test_links_modes_and_devices(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "y").write_text("old")
    (tmp_path / "there" / "y").chmod(0o604)
    (tmp_path / "link").symlink_to("there/y")
    (tmp_path / "dangling").symlink_to("there/new")
    for name in ("link", "dangling"):
        check_file(str(tmp_path / name))
        with replace_file(str(tmp_path / name)) as stream:
            stream.write(b"new")
        assert (tmp_path / name).is_symlink()
    assert content(tmp_path / "there") == {"y": b"new", "new": b"new"}
    assert stat.S_IMODE((tmp_path / "there" / "y").stat().st_mode) == 0o604
    check_file(os.devnull)
    with replace_file(os.devnull) as stream:
        stream.write(b"new")
    os.mkfifo(tmp_path / "pipe")
    check_file(str(tmp_path / "pipe"))
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    with replace_file(str(tmp_path / "pipe")) as stream:
        stream.write(b"new")
    assert reader.communicate()[0] == b"new"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@POSIX
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_device(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="No space left"), replace_file("/dev/full") as stream:
        stream.write(b"x" * 100)


@POSIX
def test_a_folder_of_another_user_and_a_link_are_not_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        folder = tmp_path / f"{HIDDEN}{number}"
        folder.mkdir()
        (folder / "lock").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "lock").touch()
    (tmp_path / f"{HIDDEN}2").symlink_to("theirs")
    mine = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: mine + 1)
        with replace_file(str(tmp_path / "y")) as stream:
            stream.write(b"new")
    assert (tmp_path / f"{HIDDEN}0").exists()
    with replace_file(str(tmp_path / "y")) as stream:
        stream.write(b"new")
    assert (tmp_path / "theirs" / "lock").exists()
    assert sorted(os.listdir(tmp_path)) == [f"{HIDDEN}2", "theirs", "y"]


def refused(folder: Path) -> list[tuple[str, str]]:
    """Names that no file can be written to, and what the error says."""
    (folder / "loop").symlink_to("loop")
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    (folder / "folder").mkdir()
    (folder / "plain").write_text("")
    (folder / "lost").symlink_to("missing/y")
    return [
        ("loop", "symbolic links"),
        ("one", "symbolic links"),
        ("loop/y", "symbolic links"),
        ("folder", "it is a folder"),
        ("new/", "it is a folder"),
        ("", "the name is empty"),
        ("plain/y", "is not a folder"),
        ("missing/y", "does not exist"),
        ("lost", "does not exist"),
        ("n" * 300, "too long"),
        ("/".join(["d" * 200] * 30), "too long"),
        ("a\0b", "null"),
        ("\ud800", "surrogates") if sys.platform != "win32" else ("a\0", "null"),
    ]


@POSIX
def test_places_that_take_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, words in refused(tmp_path):
        with pytest.raises(CallError, match=words) as error:
            check_file(name)
        assert error.value.code == "QR008", name
        with pytest.raises(CallError) as error, replace_file(name) as stream:
            stream.write(b"")
        assert error.value.code == "QR008", name
    assert not list(tmp_path.glob(".*"))


@POSIX
def test_places_that_take_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(tmp_path)
    for name, words in (
        ("loop/", "symbolic links"), ("loop/a/b", "symbolic links"), ("plain/", "a file of that name"),
        ("plain/a/b", "is not a folder"), ("n" * 300, "too long"), ("a\0b/", "null"),
    ):  # fmt: skip
        with pytest.raises(CallError, match=words) as error:
            check_folder(name)
        assert error.value.code == "QR008", name
        with pytest.raises(CallError) as error:
            write_files(name, files(b""))
        assert error.value.code == "QR008", name
    check_folder("missing/a/b/")
    check_folder("folder")


@POSIX
def test_a_writer_ended_by_a_signal_in_the_middle_of_the_move(tmp_path: Path) -> None:
    """Killed while files are moved, it leaves no first file, and the next writer makes the folder whole."""
    write_files(str(tmp_path), files(b"old", 3))
    code = (
        "import os, signal, sys\nfrom qrun.io.files import write_files\nreal, calls = os.rename, []\n"
        "def rename(*args):\n    real(*args)\n    calls.append(args)\n"
        "    if len(calls) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.rename = rename\nwrite_files('.', [(f'output_{n}.pb', b'new') for n in range(3)])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert ended.returncode == -signal.SIGKILL
    assert content_of_files(tmp_path) == {"output_2.pb": b"new"}
    write_files(str(tmp_path), files(b"newer", 3))
    assert content(tmp_path) == dict(files(b"newer", 3))
