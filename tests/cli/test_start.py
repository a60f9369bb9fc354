"""Ctrl-C at any moment from the first line of qrun to the last: exit code 130, one line, no traceback.

What Python does before qrun's first line (its own start, finding the package) is not qrun's to catch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
HOOK = """
import atexit, os, signal, sys
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
class Hook:
    left = int(os.environ["INTERRUPT_AT"])
    def find_spec(name, path=None, target=None):
        if "qrun" in sys.modules:
            Hook.left -= 1
            if Hook.left in (-1, -1 - int(os.environ["AGAIN"])):
                interrupt()
if Hook.left < 0:
    atexit.register(interrupt)
else:
    sys.meta_path.insert(0, Hook)
"""
SCRIPT = "import sys\nfrom qrun.cli import command\nif __name__ == '__main__':\n    sys.exit(command())\n"
"""As pip makes the command."""
LIBRARY = """
import signal, sys
before = signal.getsignal(signal.SIGINT)
import qrun
qrun.Session, qrun.check
assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler
from qrun.cli import main
assert main(["-V"]) == 0
assert signal.getsignal(signal.SIGINT) is before
"""
LAST = 600


def interrupted(folder: Path, entry: str, at: int, *words: str, again: int = 0) -> tuple[int, str, str]:
    """``qrun WORDS``, with SIGINT at the import of this number since the first line of qrun;
    -1: after the last line."""
    (folder / "sitecustomize.py").write_text(HOOK)
    (folder / "qrun-script").write_text(SCRIPT)
    command = [folder / "qrun-script"] if entry == "script" else ["-m", "qrun"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "INTERRUPT_AT": str(at)}
    done = subprocess.run(
        [sys.executable, *command, *words], env={**env, "AGAIN": str(again)}, cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("entry", "at"), [*(("script", at) for at in (0, 2, 10, 70)), *(("module", at) for at in (0, 1, 5, 20, 40))]
)
def test_ctrl_c_while_the_command_starts(tmp_path: Path, entry: str, at: int) -> None:
    code, out, err = interrupted(tmp_path, entry, at, "nothing.onnx")
    assert (code, out, err) == (130, "", "interrupted\n")


def test_ctrl_c_while_an_error_is_printed_and_at_the_end(tmp_path: Path) -> None:
    ends = set()
    for at in range(80, LAST, 75):
        code, out, err = interrupted(tmp_path, "module", at, "nothing.onnx")
        ends.add(code)
        assert out == ""
        assert "Traceback" not in err, at
        assert ("interrupted" in err) == (code == 130)
    assert ends == {130, 2}, "some come too late"
    code, _, err = interrupted(tmp_path, "module", -1, "-V")
    assert (code, err) == (130, "interrupted\n")


def test_json_tells_of_it_and_a_second_one_ends_at_once(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, "module", 3, "nothing.onnx", "--json")
    assert (code, err) == (130, "interrupted\n")
    assert '"exit_code": 130' in out
    assert interrupted(tmp_path, "script", 3, "nothing.onnx", "--json", again=2) == (130, "", "interrupted\n")


def test_a_program_that_imports_qrun_keeps_its_handler(tmp_path: Path) -> None:
    for code in (LIBRARY, f"import signal\nhandler = lambda *_: None\nsignal.signal(signal.SIGINT, handler)\n{SCRIPT}"):
        (tmp_path / "program.py").write_text(code)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "program.py", "-V"], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_ctrl_c_that_the_shell_ignores_stays_ignored(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(SCRIPT.replace("    sys.exit(main())", "    code = main()\n    import signal\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n    sys.exit(code)"))  # fmt: skip
    done = subprocess.run([sys.executable, "program", "-V"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_program_may_call_main_again(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text("from qrun.cli import main\nprint(main(['-V']), main(['-V']), main(['-h']))\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, tmp_path / "twice.py"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 0 0"
