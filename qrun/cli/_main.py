"""The entry point: runs the command, prints errors in one style, and gives every kind of end its own exit code.

Ctrl-C in a command's process: `qrun` itself holds the signal back until `heed_interrupts`; after `finish` it ends the
process at once. Handlers change only in a process of the command; another caller of `main` keeps its own. `main` may be
called again.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, TextIO

import qrun
from qrun.cli._base import COMMANDS, COMPLETE, Call
from qrun.errors import CallError, OperatorError, QrunError, out_of_memory_error

if TYPE_CHECKING:
    import click

BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
INTERRUPTED = 130
CLOSED_PIPE = 141
BUG = 70
STREAM_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EIO, errno.EBADF, errno.EFBIG)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 yes, 1 no, 2 call, 3 model, 4 unsupported, 5 run, 70 bug,
    130 Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    call = Call(
        argv=arguments,
        json=wants_json(arguments),
        command=arguments[0] if arguments and arguments[0] in COMMANDS else "run",
    )
    limit_blas_threads(arguments)
    atexit.register(gc.freeze)  # else Python collects cycles once more at its end: a sixth of a process's time
    try:
        code = _run(call)
        finish()
        _flush()
        return code
    except BrokenPipeError:
        _silence(sys.stdout)
        return CLOSED_PIPE
    except OSError as error:
        return _stdout_failed(error)


def command() -> NoReturn:
    """The entry point of the installed commands: calls `main`, then ends the process without Python's own shutdown.

    The shutdown would take apart every module and object, for a twentieth of the time of a short run.
    """
    code = main()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        _flush()
    os._exit(code)


def limit_blas_threads(arguments: Sequence[str]) -> None:
    """Sets the number of BLAS threads to ``--threads``, or to one without it, before numpy starts BLAS.

    Waiting threads of BLAS spin: two of them on a busy machine cost several times what they gain.
    """
    given = ""
    for place, argument in enumerate(arguments):
        if argument == "--threads" and place + 1 < len(arguments):
            given = arguments[place + 1]
        elif argument.startswith("--threads="):
            given = argument.partition("=")[2]
    for name in BLAS_VARIABLES:
        if given.isascii() and given.isdigit():
            os.environ[name] = given
        else:
            os.environ.setdefault(name, "1")


def heed_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt; if it came earlier, raises it now."""
    if signal.getsignal(signal.SIGINT) in (qrun._hold, _end):
        signal.signal(signal.SIGINT, _raise)
        if qrun._held:
            qrun._held.clear()
            raise KeyboardInterrupt


def finish() -> None:
    """From now on Ctrl-C ends the process at once: only printing is left."""
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.signal(signal.SIGINT, _end)


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _run(call: Call) -> int:
    import click

    from qrun.cli._group import group

    try:
        heed_interrupts()
        _complete_shell(group)
        with group.make_context("qrun", list(call.argv), obj=call) as context:
            result = group.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except QrunError as error:
        if call.assumed and isinstance(error, OperatorError):
            error.fixes = (_other_sizes(call.assumed, call.fits), *error.fixes[:1])
        return _fail(call, error)
    except click.ClickException as error:
        return _fail(call, usage_error(call, error))
    except (KeyboardInterrupt, click.Abort):
        finish()
        with _as_stderr_allows():
            _say("interrupted")
        _print_json(call, QrunError("interrupted", "interrupted"), INTERRUPTED)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _fail(call, out_of_memory_error(error))
        if error.filename is None and error.errno in STREAM_FULL:
            raise
        return _bug(call, error)
    except MemoryError as error:
        return _fail(call, out_of_memory_error(error))
    except Exception as error:
        return _bug(call, error)


def _other_sizes(assumed: Sequence[str], fits: bool) -> str:
    """Suggests options if a node refuses random inputs. fits: the sizes that qrun chose seemed to fit."""
    from shlex import quote

    options = " ".join(f"--shape {quote(f'{name}=SIZE')}" for name in assumed[: 3 if fits else None])
    return f"{'other sizes, or -i with real inputs' if fits else 'the sizes that the model needs'}: {options}"


def _complete_shell(group: click.Group) -> None:
    """Answers a request for completions, which the shell makes through the environment, and ends."""
    instruction = os.environ.get(COMPLETE)
    if instruction:
        from click.exceptions import Exit
        from click.shell_completion import shell_complete

        raise Exit(shell_complete(group, {}, "qrun", COMPLETE, instruction))


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON is requested, however wrong the rest of the call may be."""
    words = list(arguments)
    if "--" in words:
        words = words[: words.index("--")]
    pairs = zip(words, words[1:], strict=False)
    return "--json" in words or "--format=json" in words or any(pair == ("--format", "json") for pair in pairs)


def _fail(call: Call, error: QrunError) -> int:
    finish()
    from qrun.report.message import print_error
    from qrun.report.screen import Screen

    with _as_stderr_allows():
        print_error(Screen.of(sys.stderr, call.color), error)
        if call.verbose > 1:
            _traceback(error)
    _print_json(call, error, error.exit_code)
    return error.exit_code


def usage_error(call: Call, error: click.ClickException) -> CallError:
    """Converts click's error about a command line to the form of every other error."""
    context: click.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else f"qrun {call.command}"
    message, _, meant = " ".join(error.format_message().split()).partition("Did you mean ")
    fixes = _commands_with(context, getattr(error, "option_name", ""))
    if meant and not fixes:
        fixes = [f"did you mean {meant.rstrip(')')}"]
    return CallError("QR000", message.rstrip(" ("), fixes=[*fixes, f"{command} -h"])


def _commands_with(context: click.Context | None, option: str) -> list[str]:
    """Suggests the commands that have an option which this one lacks."""
    import click

    root = context.find_root() if context else None
    if root is None or not option or not isinstance(root.command, click.Group):
        return []
    made = {name: root.command.get_command(root, name) for name in COMMANDS}
    names = [f"qrun {name}" for name, found in made.items() if found and any(option in p.opts for p in found.params)]
    return [f"{option} is an option of {', '.join(names)}"] if names else []


def error_fields(error: QrunError) -> dict[str, object]:
    return {
        "code": error.code,
        "name": error.name,
        "message": error.message,
        "where": list(error.where),
        "facts": [{"label": label, "value": value} for label, value in error.facts],
        "why": error.why,
        "fixes": list(error.fixes),
    }


def _print_json(call: Call, error: QrunError, code: int) -> None:
    if call.json and sys.stdout is not None:
        from qrun.report.json import failure

        sys.stdout.write(failure(call.command, call.argv, error_fields(error), code) + "\n")


def _bug(call: Call, error: Exception) -> int:
    finish()
    from qrun.report.message import print_message
    from qrun.report.screen import Screen

    notes = getattr(error, "__notes__", [])
    at = f" {notes[0]}" if notes else ""
    message = f"qrun failed{at}; this is a bug in qrun"
    report = write_report(call.argv, error)
    fixes = [f"please report it with the file {report}" if report else "please report it with the traceback of -vv"]
    if call.verbose < 2:
        fixes.append("-vv prints the traceback")
    where = [f"{type(error).__name__} in {place(error)}", *([str(error)] if str(error) else [])]
    with _as_stderr_allows():
        print_message(Screen.of(sys.stderr, call.color), "error", "", "internal", message, where=where, fixes=fixes)
        if call.verbose > 1:
            _traceback(error)
    _print_json(call, QrunError("internal", message, where=where, fixes=fixes), BUG)
    return BUG


def write_report(argv: Sequence[str], error: BaseException) -> str:
    """Writes ``qrun-crash-XXXX.txt`` with the call, the versions and the traceback, in the temporary folder or else the
    current one. Returns its path; "" if it cannot be written to either."""
    import secrets
    import shlex
    import tempfile
    import traceback
    from pathlib import Path

    from qrun.cli._group import versions
    from qrun.io.files import replace_file

    text = "\n".join(
        [versions(), "", f"qrun {shlex.join(argv)}", "", "".join(traceback.format_exception(error)).rstrip(), ""]
    )
    name = f"qrun-crash-{secrets.token_hex(4)}.txt"
    for folder in (Path(tempfile.gettempdir()), Path()):
        with contextlib.suppress(CallError):
            with replace_file(str(folder / name)) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
            return str(folder / name)
    return ""


def place(error: BaseException) -> str:
    """``qrun/ops/slice.py:88``: the innermost line of qrun's code in the traceback."""
    import traceback
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(root / "qrun"):
            return f"{path.relative_to(root).as_posix()}:{frame.lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def _traceback(error: BaseException) -> None:
    import traceback

    _say("".join(traceback.format_exception(error)).rstrip())


def _say(text: str) -> None:
    if sys.stderr is not None:
        from qrun.report.screen import Screen

        encoding = sys.stderr.encoding or "utf-8"
        Screen.of(sys.stderr).stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


@contextlib.contextmanager
def _as_stderr_allows() -> Iterator[None]:
    """Drops messages that stderr does not accept, and keeps the exit code."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        _silence(sys.stderr)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _stdout_failed(error: OSError) -> int:
    """Reports that stdout cannot be written: a full disk, or a descriptor that is not open for writing."""
    from qrun.io.files import REMEDIES

    _silence(sys.stdout)
    fixes = [REMEDIES[error.errno]] if error.errno in REMEDIES else []
    message = f"cannot write to stdout: {error.strerror or error}"
    return _fail(Call(), CallError("QR008", message, fixes=fixes))


def _silence(stream: TextIO) -> None:
    """Redirects this stream to nowhere, so that Python's own flush at the end does not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
