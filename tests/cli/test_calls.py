"""How commands are called: default command, help, version, configuration, start-up."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, call, deep_model, npy, process, save, says, sum_model

from qrun.cli._group import COMMANDS, is_model
from qrun.cli._main import BLAS_VARIABLES, _other_sizes, limit_blas_threads
from qrun.native.emit.isa import choose


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(deep_model(3), folder / "m.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))


def available() -> list[str]:
    return [
        name
        for name, (home, _) in COMMANDS.items()
        if (ROOT / (home.partition(":")[0].replace(".", "/") + ".py")).exists()
    ]


def test_a_path_runs(folder: Path) -> None:
    (folder / "sub").mkdir()
    save(sum_model(), folder / "sub" / "plain")
    for words in (["m.onnx"], ["./m.onnx"], [str(folder / "m.onnx")], ["sub/plain"], ["-i", "x.npy", "m.onnx"], ["run", "m.onnx"],
                  ["--json", "m.onnx"]):  # fmt: skip
        assert call(*words).code == 0, words
    assert call("-", stdin=(folder / "m.onnx").read_bytes()).code == 0


def test_commands_are_plain_words() -> None:
    for name in COMMANDS:
        assert re.fullmatch("[a-z]+", name)
        assert not is_model(name)


def test_plain_named_file(folder: Path) -> None:
    save(sum_model(), folder / "model")
    says(call("model"), 2, "qrun ./model")
    assert call("./model").code == 0


def test_spelling_help() -> None:
    says(call("profil", "m.onnx"), 2, "did you mean 'profile'?")
    assert "--inputs" in call("m.onnx", "--input", "x.npy").err
    assert call("m.onnx", "--jso").code == 2, "options must not be abbreviated"


def test_help_fits_80_columns() -> None:
    for words in ([], *([name] for name in available())):
        for flag in ("-h", "--help"):
            ended = call(*words, flag)
            assert ended.code == 0
            lines = ended.out.splitlines()
            assert max(map(len, lines)) <= 80, [line for line in lines if len(line) > 80]
        assert call("help", *words).out == ended.out
    assert call("help", "nonsense").code == 2
    page = call("run", "-h").out
    assert page.index("Examples:") < page.index("Arguments:") < page.index("Inputs:") < page.index("General:")


def test_help_examples_parse() -> None:
    """Every example in the help is a call that the parser accepts."""
    import shlex

    from qrun.cli._group import CommandGroup, group

    assert isinstance(group, CommandGroup)
    for name in ("run", "profile"):
        command = group.get_command(None, name)  # type: ignore[arg-type]
        for example in command.examples:  # type: ignore[union-attr]
            words = shlex.split(re.sub("#.*|> .*", "", example))[1:]
            words = words[1:] if words[0] == name else words
            command.make_context(name, words, resilient_parsing=True)  # type: ignore[union-attr]


def test_version() -> None:
    for flag in ("-V", "--version"):
        lines = call(flag).out.splitlines()
        assert lines[0].startswith("qrun ")
        first = ["qrun", "Python", platform.system(), "CPU", "instructions"]
        assert [line.split()[0] for line in lines] == [*first, "numpy", "onnx", "llvmlite", "onnxruntime"]
        assert lines[4] == f"instructions {choose().name}"
    assert "instructions none: 'z80' is not" in call("-V", env={"QRUN_ISA": "z80"}).out


def test_options_may_stand_anywhere() -> None:
    assert (
        call("m.onnx", "-q", "-i", "x.npy").out
        == call("-q", "-i", "x.npy", "m.onnx").out
        == call("run", "-i", "x.npy", "m.onnx", "-q").out
    )


def test_config_file(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.qrun]\nmax-memory = "100B"\n[tool.qrun.profile]\nruns = 2\n')
    says(call("m.onnx"), 5, "max-memory from [tool.qrun]")
    assert call("m.onnx", "--max-memory", "1GiB").code == 0
    assert call("m.onnx", env={"QRUN_MAX_MEMORY": "1GiB"}).code == 0
    assert call("m.onnx", "--config", "none").code == 0
    assert call("m.onnx", env={"QRUN_CONFIG": "none"}).code == 0
    (folder / "other.toml").write_text("[tool.qrun.run]\nseed = 7\njson = true\nshape = ['N=2']\n")
    ended = call("m.onnx", "--config", "other.toml")
    assert ended.code == 0, ended.err
    assert ended.json["inputs"][0]["source"] == "random, seed 7"
    assert ended.json["inputs"][0]["shape"][0] == 2
    (folder / "sub").mkdir()
    (folder / "sub" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert process("../m.onnx", cwd=folder / "sub").code == 0, "the nearest file counts, others are not read"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.qrun]\nmax-memori = 1", "did you mean max-memory"),
        ("[tool.qrun.rnu]\nseed = 1", "did you mean run"),
        ("[tool.qrun.run]\nsede = 1", "did you mean seed"),
        ("[tool.qrun.run]\noutput = 'x.npz'", "can only be named on the command line"),
        ("[tool.qrun]\ninputs = 'x.npy'", "can only be named on the command line"),
        ("[tool.qrun]\nmax-memory = true", "wrong kind"),
        ("[tool.qrun]\nmax-memory = [1]", "wrong kind"),
        ("[tool.qrun.run]\nquiet = 'yes'", "wrong kind"),
        ("[tool]\nqrun = 1", "a table"),
        ("tool = 1\n# qrun", "TOML"),
        ("[tool.qrun", "TOML"),
    ],
)
def test_bad_config(folder: Path, text: str, words: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    ended = says(call("m.onnx", "--json"), 2, words)
    assert ended.json["error"]["code"] == "QR009"


@pytest.mark.parametrize(("key", "value"), [("metric", "['mine:score']"), ("dask", "'tcp://host:8786'")])
def test_a_config_file_names_no_code(folder: Path, key: str, value: str) -> None:
    """It may come with a stranger's repository."""
    (folder / "pyproject.toml").write_text(f"[tool.qrun.eval]\n{key} = {value}")
    says(call("eval", "m.onnx", "-i", "x.npy"), 2, "options that run other code can only be given on the command line")


def test_bad_values_in_config(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.qrun]\nmax-memory = "lots"\n')
    assert call("m.onnx").code == 2
    assert call("m.onnx", "--config", "missing.toml").code == 2


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from qrun.cli import main;"
        "codes = [main(words.split()) for words in ('--help', '-V', 'run --help', 'profile --help')];"
        "print(*codes, *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, timeout=60)
    *codes, _ = done.stderr.split(maxsplit=4)
    loaded = set(done.stderr.split()[4:])
    assert (codes, "click" in loaded) == (["0"] * 4, True), done.stderr
    assert not loaded & {"numpy", "onnx", "onnxruntime", "rich", "ml_dtypes", "google", "pygments"}


def test_a_run_off_a_terminal_needs_no_rich(folder: Path) -> None:
    probe = (
        "import sys; from qrun.cli import main; code = main(['m.onnx', '-i', 'x.npy']);"
        "bad = {'pygments', 'markdown_it', 'rich', 'onnxruntime'} & set(sys.modules); sys.exit(code or repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr


def test_module_and_scripts() -> None:
    import tomllib

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"qrun": "qrun.cli:command", "onnx-qrun": "qrun.cli:command"}
    assert process("-V", cwd=ROOT).code == 0


@pytest.mark.parametrize("words", [("m.onnx", "-i", "x.npy"), ("ops", "--nosuch")])
def test_the_installed_command_ends_as_main_does(words: tuple[str, ...], folder: Path) -> None:
    last = "import atexit, sys; atexit.register(lambda: print('last'));"
    ends = ("from qrun.cli import main; sys.exit(main())", "from qrun.cli import command; command()")
    found = [
        subprocess.run(
            [sys.executable, "-c", last + end, *words], capture_output=True, text=True, cwd=folder, timeout=60
        )
        for end in ends
    ]
    assert [done.stdout.endswith("last\n") for done in found] == [True, True]
    assert found[0].returncode == found[1].returncode
    times = [re.sub(r"[\d.]+ (ns|us|ms|s|%)|[\d.]+%", "", done.stdout + done.stderr) for done in found]
    assert times[0].split()[:20] == times[1].split()[:20]


def test_completion(folder: Path) -> None:
    def complete(words: str, at: int) -> str:
        env = {"_QRUN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return process(cwd=folder, env=env).out

    assert "plain,profile" in complete("qrun pro", 1)
    assert "plain,--trace" in complete("qrun m.onnx --tr", 2)
    assert "plain,QR301" in complete("qrun explain QR30", 2)
    assert "plain,QLinearConv" in complete("qrun explain qlinearc", 2)
    for shell in ("bash", "zsh", "fish"):
        script = call("completion", shell)
        assert (script.code, script.err) == (0, "")
        assert script.out.strip() == process(env={"_QRUN_COMPLETE": f"{shell}_source"}, cwd=folder).out.strip()
        assert f"qrun completion {shell}" in call("explain", "completion").out
    says(call("completion", "fsh"), 2, "did you mean 'fish'?")
    assert "qrun completion SHELL" in call("--help").out


def test_threads_without_a_number() -> None:
    """The last word, at which the number of BLAS threads is looked for before the call is parsed."""
    ended = process("run", ROOT / "models" / "digits" / "qdq" / "model.onnx", "--threads")
    assert ended.code == 2
    assert "requires an argument" in ended.err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["m.onnx"], "1"),
        (["m.onnx", "--threads", "3"], "3"),
        (["--threads=2"], "2"),
        (["--threads"], "1"),
        (["--threads", "x"], "1"),
    ],
)
def test_blas_gets_as_many_threads(words: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BLAS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    limit_blas_threads(words)
    assert {os.environ.pop(name) for name in BLAS_VARIABLES} == {wanted}


def test_at_most_three_sizes_are_suggested_where_those_at_hand_fit() -> None:
    names = ["n", "h w", "c", "d"]
    assert _other_sizes(names, True).count("--shape") == 3
    assert _other_sizes(names, False) == (
        "the sizes that the model needs: --shape n=SIZE --shape 'h w=SIZE' --shape c=SIZE --shape d=SIZE"
    )
