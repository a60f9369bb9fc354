"""Options that commands share: those of every command, those of commands that run a model, and reports to files."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import (
    Call,
    Function,
    Heading,
    RealNumber,
    WholeNumber,
    contradiction,
    heading,
    is_given,
    places,
    stack_decorators,
)
from qrun.cli._config import config_option
from qrun.errors import CallError, suggest
from qrun.memory import ResourceLimits, parse_size

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from qrun.arithmetics import Arithmetic
    from qrun.checking.targets import DeployTarget
    from qrun.io.conversion import Conversion
    from qrun.report.screen import Out

Options = Callable[[Function], Function]

general, inputs, run, timing, output = map(heading, ("General", "Inputs", "Run", "Timing", "Output"))
operators = heading("Custom operators")


def _load_operators(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> None:
    """Runs the files of ``--ops``. Raises CallError QR018."""
    for path in () if ctx.resilient_parsing else given:
        from qrun.ops._plugins import load_file

        load_file(path)


def _load_functions(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> None:
    """Adds the functions of the files of ``--functions``. Raises CallError QR018."""
    for path in () if ctx.resilient_parsing else given:
        from qrun.ops._plugins import load_functions

        load_functions(path)


custom_operators = stack_decorators(
    operators(
        "--ops FILE",
        "A Python file that declares operators with @qrun.op. It is run (qrun explain custom-operators). Repeatable.",
        multiple=True,
        callback=_load_operators,
        expose_value=False,
        is_eager=True,
    ),
    operators(
        "--functions FILE",
        "An .onnx file whose functions define operators that neither the model nor qrun has. Repeatable.",
        multiple=True,
        callback=_load_functions,
        expose_value=False,
        is_eager=True,
    ),
)


def general_options(*, config: bool = False) -> Callable[[Function], Function]:
    """``-q``, ``-v``, ``--color`` (and ``--config``); the function receives them as ``out``, an `Out`."""
    options = [
        general("-q, --quiet", "Print the result only."),
        general("-v, --verbose", "More detail; -vv adds tracebacks.", count=True),
        general(
            "--color", "NO_COLOR and FORCE_COLOR are honoured too.", type=["auto", "always", "never"], default="auto"
        ),
    ]
    if config:
        options.append(config_option)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def with_out(*args: Any, quiet: bool, verbose: int, color: str, **kwargs: Any) -> Any:
            from qrun.report.screen import Out

            call = click.get_current_context().ensure_object(Call)
            call.verbose, call.color = verbose, color
            out: Out = Out.open(color=color, quiet=quiet, verbose=verbose)
            for note in click.get_current_context().meta.get("qrun.notes", ()):
                out.note(note)
            if quiet or not out.messages.terminal:
                return function(*args, out=out, **kwargs)
            from qrun.report.progress import ProgressLine

            with ProgressLine(out, call.command):
                return function(*args, out=out, **kwargs)

        return stack_decorators(*options)(with_out)

    return decorate


OTHERS = ("ort", "onnx-ref")
BACKENDS = ("native", "reference", *OTHERS)


class Size(click.ParamType):  # type: ignore[type-arg]
    """``8GiB``, ``500MB`` or a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError:
            self.fail(f"{value!r} is not a size such as 8GiB, 500MB or 4096.", param, ctx)


class ArithmeticName(click.ParamType):  # type: ignore[type-arg]
    """The name of an arithmetic of qrun, or of an integer engine. exact: is ``exact`` one of them?"""

    name = "arithmetic"

    def __init__(self, exact: bool = True) -> None:
        self._exact = exact

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "exact" and not self._exact:
            self.fail("'exact' is the arithmetic that the other one is compared with.", param, ctx)
        if value not in ("exact", *OTHERS):
            from qrun.ops import check_arith

            check_arith(value)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from qrun.ops import known_arithmetics

        return [CompletionItem(name) for name in known_arithmetics()[not self._exact :] if name.startswith(incomplete)]


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """``500ms``, ``90s``, ``10m``, ``1h`` or ``none``, as seconds; ``none`` is infinite."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        if text == "none":
            return math.inf
        number = text.rstrip("smh")
        units = {"": 1, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
        try:
            seconds = float(number) * units.get(text[len(number) :], math.nan)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            self.fail(f"{value!r} is not a time such as 500ms, 90s, 10m, 1h or none.", param, ctx)
        return seconds


class Distance(RealNumber):
    """A number of 0 or more; NaN is refused, because it compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number of 0 or more.", param, ctx)
        return number


def _image_words(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """The words of [tool.qrun.image], then those of ``--image``. Raises CallError for one that says nothing."""
    words = (*ctx.meta.get("qrun.image", ()), *(word for text in given for word in re.sub(r",\s+", ",", text).split()))
    if words:
        from qrun.io.imagesettings import parse_settings

        parse_settings(words)
    return words


def conversion_options(under: Heading) -> Options:
    """``--image`` and ``--cast``, see `conversion`."""
    return stack_decorators(
        under(
            "--image KEY=VALUE...",
            "How image files become inputs: size=224 color=rgb scale=1/255 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 layout=nchw (qrun explain image).",
            multiple=True,
            callback=_image_words,
        ),
        under("--cast", "Convert arrays to the element types of the inputs; an error if values do not fit."),
    )


def conversion(options: Mapping[str, Any]) -> Conversion:
    """The values of `conversion_options`."""
    from qrun.io.conversion import Conversion

    return Conversion(options["image"], options["cast"])


input_options = stack_decorators(
    inputs(
        "-i, --inputs SPEC",
        "An input: x.npy, name=x.npy, all.npz, name=[1,2], x.pb, cat.png, a test_data_set_0/ directory, or - for stdin. "
        "Repeatable.",
        multiple=True,
        shell_complete=places("file"),
    ),
    conversion_options(inputs),
    inputs("--random", "Use random data for inputs that were not given."),
    inputs("--seed INTEGER", "Seed for random inputs.", type=WholeNumber(0, 2**63 - 1), default=0),
    inputs(
        "--shape SPEC",
        "Fix dynamic sizes: image:1x3x224x224 for one input, N=4 for a named dimension, x[0]=4 for another. Repeatable.",
        multiple=True,
    ),
)


def own_backends(function: Function) -> Function:
    """Refuses options of qrun's own backends if ``--backend`` is another runtime, which ignores them.

    The function's parameters: backend, and arith, fuse or both.
    """

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        ctx = click.get_current_context()
        backend = options["backend"]
        for name, has in (("arith", "its own arithmetic"), ("fuse", "its own rules for the graph")):
            if backend in OTHERS and name in options and is_given(ctx, name):
                value = options[name]
                word = f"--{name} {value}" if isinstance(value, str) else f"--{name}" if value else f"--no-{name}"
                message = f"{word.split()[0]} is for qrun's own backends; another runtime has {has}"
                raise contradiction(message, [word, f"--backend {backend}"])
        return function(*args, **options)

    return checked


def arith_option(under: Heading) -> Options:
    help = "Requantization: exact; as ort or onnx-ref; or as an integer engine: tfl-double, ... (qrun explain arithmetics)."
    return under("--arith NAME", help, type=ArithmeticName(), default="exact")


def memory_option(under: Heading, help: str = "Stop before the run needs more memory, e.g. 8GiB.") -> Options:
    return under(
        "--max-memory SIZE", help, type=Size(), envvar="QRUN_MAX_MEMORY", show_envvar=True, show_default="80 % of free"
    )


def time_option(under: Heading, help: str = "Stop a run that takes longer, e.g. 90s or 10m.") -> Options:
    return under("--max-time TIME", help, type=Seconds(), show_default="none")


def limits(options: Mapping[str, Any]) -> ResourceLimits:
    """The values of `memory_option` and `time_option`."""
    return {"max_memory": options["max_memory"], "max_time": options["max_time"]}


def tolerance_options(under: Heading, what: str, rtol: Mapping[str, Any], atol: Mapping[str, Any]) -> Options:
    """``--lsb``, ``--rtol`` and ``--atol``. what: the things that may differ; rtol, atol: keywords that give or show
    the default of each."""
    about = f"tolerance of floating-point {what}."
    return stack_decorators(
        under("--lsb N", f"Steps by which integer {what} may differ.", type=WholeNumber(0), default=0),
        under("--rtol X", f"Relative {about}", type=Distance(0), **rtol),
        under("--atol X", f"Absolute {about}", type=Distance(0), **atol),
    )


run_options = stack_decorators(
    run("-b, --backend", "Which runtime executes the model.", type=BACKENDS, show_default="native, where it can run"),
    arith_option(run),
    run(
        "--fuse/--no-fuse",
        "Run DequantizeLinear-operator-QuantizeLinear groups as integer operators, or the graph as written.",
        default=None,
        show_default="fuse; --backend reference: as written",
    ),
    run(
        "--threads N",
        "Threads of the backend (of BLAS, for qrun's numpy kernels).",
        type=WholeNumber(1, 4096),
        show_default="all CPUs; 1 of BLAS",
    ),
    run("--no-cache", "Neither read nor write the cache of compiled kernels and prepared models (qrun cache)."),
    memory_option(run),
    time_option(run),
    own_backends,
)


class Top(click.ParamType):  # type: ignore[type-arg]
    """A number of rows; None for ``all``."""

    name = "top"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        text = str(value)
        if text == "all":
            return None
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
            self.fail(f"{text!r} is neither a number above 0 nor 'all'.", param, ctx)
        return int(text)


def top_option(under: Heading, help: str, default: int = 20) -> Options:
    """``--top``: a number of rows, None for all."""
    return under("--top N", help, type=Top(), default=default)


USUAL_FAMILY = "tfl-double"


def requantize_option(under: Heading, what: str, **default: str) -> Options:
    """``--requantize``, for `integer_family`. default: the keyword that gives or shows USUAL_FAMILY."""
    return under("--requantize FAMILY", f"The arithmetic of {what} (qrun explain arithmetics).", **default)


def integer_family(name: str) -> Arithmetic:
    """The arithmetic of a name. Raises CallError for an unknown one, and for one that needs floats."""
    from qrun.arithmetics import FAMILIES
    from qrun.converting.requantize import has_integer_form

    fitting = [each.name for each in FAMILIES.values() if has_integer_form(each)]
    if name in fitting:
        return FAMILIES[name]
    near = suggest(name, fitting)
    raise CallError(
        "QR005",
        f"--requantize {name}: {'it needs floats' if name in FAMILIES else 'unknown arithmetic'}",
        facts=[("expected", ", ".join(fitting))],
        fixes=[f"did you mean --requantize {near}?" if near else "qrun explain arithmetics"],
    )


runs_option = timing(
    "-n, --runs N", "Timed runs.", type=WholeNumber(1, 10**6), show_default="as many as fit in 3 s, 5 to 1000"
)

trace_option = output("--trace FILE", "Save a timeline (Chrome trace, ONNX Runtime layout).")


def read_model(model: str, inputs: tuple[str, ...]) -> str | bytes:
    """The argument for ``qrun.load``: the path, or the bytes of stdin for ``-``. CallError if stdin is unusable."""

    if model != "-":
        return os.fspath(model)
    if "-" in inputs or any(spec.endswith("=-") for spec in inputs):
        fixes = ["write one of them to a file first"]
        raise CallError("QR005", "only one - may read stdin", facts=[("got", "MODEL - and -i -")], fixes=fixes)
    if sys.stdin is None or sys.stdin.isatty():
        raise CallError("QR005", "- reads the model from stdin, but stdin is a terminal", fixes=["qrun - < model.onnx"])
    return sys.stdin.buffer.read()


class TargetNames(click.ParamType):  # type: ignore[type-arg]
    """Targets that models are judged for: names of targets or paths of their files, separated by commas, or ``all``."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from qrun.checking.targets import names

        before, comma, last = incomplete.rpartition(",")
        found = [name for name in ("all", *names()) if name.startswith(last)]
        files = [] if found else [CompletionItem(incomplete, type="file")]
        return [*(CompletionItem(f"{before}{comma}{name}") for name in found), *files]


def target_option(under: Heading, help: str) -> Options:
    return under("--target NAME", help, type=TargetNames(), multiple=True)


def deploy_targets(given: Sequence[str]) -> tuple[DeployTarget, ...]:
    """The targets of `target_option`, each once. ``NAME@1.24.4`` takes the rules of another version,
    ``NAME@KEY=VALUE`` sets an option of the target.

    Raises CallError for an unknown target, and for two that have the same name.
    """
    if not given:
        return ()
    from qrun.checking.targets import names

    words = [word.strip() for text in given for word in text.split(",") if word.strip()]
    specs = dict.fromkeys(spec for word in words for spec in (names() if word == "all" else (word,)))
    found: dict[str, tuple[str, DeployTarget]] = {}
    for spec in specs:
        target = _deploy_target(spec)
        if target.id in found:
            facts = [("first", found[target.id][0]), ("second", spec)]
            raise CallError("QR005", f"two targets are named {target.id}", facts=facts, fixes=["check them one by one"])
        found[target.id] = spec, target
    if not found:
        raise CallError("QR005", "--target names no target", facts=[("known", ", ".join(names()))])
    return tuple(target for _, target in found.values())


def _deploy_target(spec: str) -> DeployTarget:
    """The target of ``NAME``, ``NAME@VERSION`` or ``NAME@KEY=VALUE``."""
    from qrun.checking.targets import find

    if os.path.exists(spec):
        return find(spec)
    name, *more = spec.split("@")
    versions = [word for word in more if "=" not in word]
    pairs = [word.partition("=") for word in more if "=" in word]
    return find(name, versions[-1] if versions else "", {key: _option_value(value) for key, _, value in pairs})


def _option_value(text: str) -> int | float | str:
    """The value of a target's option: a number if the text is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


Target = tuple[str, str]
"""A format and a file."""


def targets(specs: Sequence[str], suffixes: Mapping[str, str], read: Mapping[str, str]) -> list[Target]:
    """Parses the targets of -o. suffixes: by format; read: other files of the call, and what they are.

    Raises CallError, before the work, for an unknown format, and for a report that cannot be written to its file.
    """
    from qrun.io.outputs import check_trace
    from qrun.report.formats import target

    taken, found = dict(read), []
    for spec in specs:
        format, file = target(spec, suffixes)
        check_trace(file, taken)
        taken[file] = "another report of this command"
        found.append((format, file))
    return found


def write_reports(found: Sequence[Target], text: Callable[[str], str], out: Out) -> None:
    """Writes each report to its file, and says so. text: makes the report in a given format."""
    from qrun.io.files import replace_file

    for format, file in found:
        with replace_file(file) as stream:
            stream.write(text(format).encode("utf-8", "backslashreplace"))
        out.wrote(file)
