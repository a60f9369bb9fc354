"""The building blocks of every command: grouped help with the examples first, shared options, and the two streams.

A command module defines ``command`` with `define` and the option decorators of this module. The function receives its
own parameters and ``out``, an `Out`; it returns an exit code or None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from qrun.declare.frozen import changeable
from qrun.errors import CallError, suggest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from qrun.cli._help import HelpText
    from qrun.report.answer import Answer
    from qrun.report.screen import Out


Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
Function = Callable[..., Any]
Heading = Callable[..., Callable[[Function], Function]]
"""Declares options under one heading of the help, see `option`."""
COMMANDS = {
    "run": ("qrun.cli.run:command", "Run a model: outputs, time per node, spec checks."),
    "check": ("qrun.cli.check:command", "Check models against the operator specs; replay test vectors."),
    "profile": ("qrun.cli.profile:command", "Measure time per node over many runs."),
    "compare": ("qrun.cli.compare:command", "Find where two runtimes, models or runs differ, and why."),
    "eval": ("qrun.cli.eval:command", "Evaluate models on a data set: accuracy, agreement, errors."),
    "conform": ("qrun.cli.conform:command", "Test a runtime against the operator conformance suite."),
    "probe": ("qrun.cli.probe:command", "Name the requantization arithmetic of a runtime or device."),
    "convert": ("qrun.cli.convert:command", "Write a quantized model in another form, and say what that changes."),
    "export": (
        "qrun.cli.export:command",
        "Write the integers of each layer for hardware and firmware: C, hex, raw or JSON.",
    ),
    "inspect": ("qrun.cli.lookup:inspect", "Show inputs, outputs, operators and quantization of a model."),
    "report": ("qrun.cli.report:command", "Write one self-contained HTML page."),
    "cache": ("qrun.cli.lookup:cache", "Show or clear the cache."),
    "ops": ("qrun.cli.lookup:ops", "List supported operators, versions and types."),
    "explain": ("qrun.cli.lookup:explain", "Explain a rule, an operator or a topic, offline."),
    "completion": ("qrun.cli.lookup:completion", "Print the script that completes commands after the Tab key."),
}
"""The commands by name: the place of each declaration, and its line in the help."""
COMPLETE = "_QRUN_COMPLETE"
"""The environment variable through which a shell asks for completions."""


@changeable
class Call:
    """One call of the program, shared between a command and `main`, which prints errors.

    assumed: free axes of random inputs, for which qrun chose sizes. fits: whether the model accepts these sizes.
    """

    argv: list[str] = field(default_factory=list)
    command: str = "run"
    json: bool = False
    verbose: int = 0
    color: str = "auto"
    assumed: tuple[str, ...] = ()
    fits: bool = True


class _Limited:
    """A number type whose error message states its limits, for values that are no numbers or are out of range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind: Any = self
        try:
            return super().convert(value, param, ctx)  # type: ignore[misc]
        except click.BadParameter:
            if kind.max is not None:
                ends = f" from {kind.min} to {kind.max}"
            else:
                ends = "" if kind.min is None else f" above {kind.min}" if kind.min_open else f" of {kind.min} or more"
            kind.fail(f"{str(value)!r} is not a {kind.noun}{ends}.", param, ctx)


class WholeNumber(_Limited, click.IntRange):
    """An integer between limits."""

    noun = "whole number"


class RealNumber(_Limited, click.FloatRange):
    """A number between limits."""

    noun = "number"


class Choice(click.Choice):  # type: ignore[type-arg]
    """One of several words; for an unknown word, the error suggests a similar one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = suggest(str(value), self.choices)
            self.fail(f"{error.message} Did you mean {near!r}?" if near else error.message, param, ctx)


class Option(click.Option):
    """An option with the heading of the help under which it is listed.

    sets: the parameter that gets the value of this flag, if not its own.
    """

    def __init__(self, *args: Any, group: str = "General", sets: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.sets = sets or self.name or ""

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default  # without click's brackets
        return extra


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, *args: Any, about: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.about = about


def _as_inputs(given: Sequence[str] | None, rest: Sequence[str]) -> str:
    """Suggests surplus words as values of -i: as files, or as one value with spaces around its =."""
    last = given[-1] if given else ""
    if last and (last.endswith("=") or rest[0].startswith("=")):
        return f"-i {last}{''.join(rest[: 2 if rest[0] == '=' else 1])}"
    return " ".join(f"-i {word}" for word in rest)


def _join_words(args: Sequence[str], option: str) -> list[str]:
    """The arguments, where KEY=VALUE words behind this option are one word: ``--image size=224 color=rgb``."""
    made: list[str] = []
    for word in args:
        if made[-2:-1] == [option] and "=" in made[-1] and re.match(r"[a-z]+=", word):
            made[-1] += f" {word}"
        else:
            made.append(word)
    return made


class Command(click.Command):
    """A command whose help has this order: usage, one sentence, examples, arguments, options by heading."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), notes: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {})
        kwargs["context_settings"] = {"help_option_names": ["-h", "--help"], **kwargs["context_settings"]}
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.notes = notes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses like click, with all KEY=VALUE words behind --image as its value; for surplus arguments, the error
        suggests -i or a call of its own."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, _join_words(args, "--image"))
        if rest and not ctx.resilient_parsing:
            models = any(os.path.isdir(word) or word.endswith(".onnx") for word in rest)
            hint = f" Did you mean {_as_inputs(ctx.params['inputs'], rest)}?" if "inputs" in ctx.params else ""
            hint = f" Did you mean a separate call, {ctx.command_path} {rest[0]}?" if models else hint
            ctx.fail(f"Got unexpected extra argument{'s' if len(rest) > 1 else ''} ({' '.join(rest)}).{hint}")
        return rest

    def get_help(self, ctx: click.Context) -> str:
        from qrun.cli._help import HelpText

        formatter = HelpText(ctx)
        self.format_help(ctx, formatter)
        return formatter.getvalue().rstrip("\n")

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "Show this message and exit."
        return option

    def format_help(self, ctx: click.Context, formatter: HelpText) -> None:  # type: ignore[override]
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_lines(self.examples)
        arguments = [p for p in self.params if isinstance(p, Argument) and p.about]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(p.make_metavar(ctx), p.about) for p in arguments])
        headings: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = None if isinstance(param, Argument) else param.get_help_record(ctx)
            if record is not None:
                headings.setdefault(getattr(param, "group", "General"), []).append(record)
        for heading, records in sorted(headings.items(), key=lambda item: item[0] == "General"):
            with formatter.section(heading):
                formatter.write_dl(records)
        if self.notes:
            formatter.write_paragraph()
            formatter.write_text(self.notes)


def define(
    name: str, *, examples: Sequence[str] = (), notes: str = "", **options: Any
) -> Callable[[Function], Command]:
    """Makes a Command of a function; its docstring's first line is the short help."""

    def decorate(function: Function) -> Command:
        made = click.command(name, cls=Command, examples=examples, notes=notes, **options)(function)
        assert isinstance(made, Command)
        return made

    return decorate


PLACES = {"FILE": "file", "[FORMAT=]FILE": "file", "PATH": "file", "DIR": "dir"}
"""What the Tab key completes, by metavar."""


def places(kind: str) -> Complete:
    """Returns a completer for names of files ("file", folders too) or folders ("dir")."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=kind)]

    return complete


def heading(group: str) -> Heading:
    """`option` under one heading of the help."""
    return partial(option, group)


def option(group: str, shown: str, help: str, *, into: str = "", **kwargs: Any) -> Callable[[Function], Function]:
    """``click.option`` under a heading of the help, which shows its default; the metavar decides what the Tab key
    completes.

    shown: as the help shows it: ``-j, --jobs N``. into: the parameter that gets the value, if its name differs.
    type:  a type of click, or the words to choose from; without one, and without a metavar, it is a flag.
    """
    shown, _, metavar = shown.replace(", ", ",").partition(" ")
    if not metavar and kwargs.keys().isdisjoint(("type", "count", "flag_value")):
        kwargs["is_flag"] = True
    if kwargs.get("default") is not None:
        kwargs.setdefault("show_default", True)
    if isinstance(kwargs.get("type"), (list, tuple)):
        kwargs["type"] = Choice(kwargs["type"])
    if metavar in PLACES:
        kwargs.setdefault("shell_complete", places(PLACES[metavar]))
    names = [*shown.split(","), *filter(None, [into])]
    return click.option(*names, cls=Option, group=group, metavar=metavar or None, help=help, **kwargs)


def argument(*names: str, about: str, **kwargs: Any) -> Callable[[Function], Function]:
    """``click.argument`` with a line of help; the Tab key completes files unless another completer is given."""
    return click.argument(*names, cls=Argument, about=about, **{"shell_complete": places("file"), **kwargs})


def stack_decorators(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Joins several decorators into one; the help shows their options in this order."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_argument = argument("model", about="An .onnx file, or - for stdin.")


def format_options(*formats: str) -> Callable[[Function], Function]:
    """``--format`` with these choices, the first one as default, and ``--json``. Parameter: ``format``."""
    output, early = heading("Output"), {"is_eager": True, "expose_value": False}
    return stack_decorators(
        output("--format", "What to print.", type=formats, default=formats[0], callback=_format),
        output("--json", "Same as --format json.", flag_value="json", sets="format", callback=_json, **early),
    )


def _json(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta["qrun.json"] = True


def _format(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The format; json if ``--json`` is given. Raises CallError if both are given and contradict each other."""
    if "qrun.json" not in ctx.meta:
        return value
    if value != "json" and is_given(ctx, "format") and not ctx.resilient_parsing:
        raise contradiction(f"--json and --format {value} are two formats", ["--json", f"--format {value}"])
    return "json"


def print_json(out: Out, fields: Mapping[str, Any], answer: Answer) -> None:
    """Writes the JSON document of this call."""
    from qrun.report.json import document

    call = click.get_current_context().ensure_object(Call)
    out.result.write(document(call.command, call.argv, fields, answer))


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether this parameter is on the command line."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def contradiction(message: str, given: Sequence[str]) -> CallError:
    """The error for options that exclude each other. given: the options as they were typed."""
    return CallError("QR005", message, facts=[("got", " ".join(given))], fixes=[f"omit {' or '.join(given)}"])
