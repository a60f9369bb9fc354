"""The ``qrun`` command: loads commands by name when used; a first word that cannot be a command is a model."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from typing import TYPE_CHECKING

import click

from qrun.cli._base import COMMANDS, Command, places
from qrun.errors import close_matches

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

USAGE = """\
qrun - run, check, profile and compare quantized ONNX models

Usage:
  qrun MODEL [OPTIONS]    run a model (short for qrun run MODEL)
  qrun COMMAND [OPTIONS]

Examples:
  qrun m.onnx --inputs x.npy          outputs, time per node, spec checks
  qrun m.onnx -i x.npy -o out.npz     save the outputs
  qrun check models/                  findings, and test vectors replayed
  qrun profile m.onnx --trace t.json  time per node; trace opens in Perfetto
  qrun compare m.onnx --against ort   first tensor that differs, and why
  qrun inspect m.onnx                 what is in a model
"""

ENVIRONMENT = (
    ("QRUN_MAX_MEMORY", "Same as --max-memory."),
    ("QRUN_CONFIG", "Same as --config."),
    ("QRUN_CACHE_DIR", "Where compiled kernels and prepared models are kept."),
    ("QRUN_CACHE_SIZE", "Size limit of that cache, such as 2GB."),
    ("QRUN_ISA", "A lower instruction set for native kernels."),
)
"""qrun's own environment variables; ``qrun explain environment`` lists more."""
CLOSING = "qrun COMMAND -h for one command; qrun explain inputs|exit-codes|config|environment|json for the formats, qrun completion SHELL for the Tab key."


def is_model(word: str) -> bool:
    """Whether this first word cannot be a command: it has a dot or a slash, is ``-``, or is an option of ``run``."""
    if word.startswith("-"):
        return word not in ("-h", "--help", "-V", "--version")
    return any(sign in word for sign in "./\\")


def _general(word: str) -> str:
    """``--version`` or ``--help`` if the word nearly is that; "" for other words and for options of ``run``."""
    if not word.startswith("--"):
        return ""
    near = close_matches(word, ("--version", "--help", "--verbose"), 1, 0.8)
    return near[0] if near and near[0] not in (word, "--verbose") else ""


class CommandGroup(click.Group):
    """The commands of COMMANDS; the form of the first word selects the default one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help":
            return help_command
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) == 1 and (meant := _general(args[0])):
            raise click.NoSuchOption(args[0], possibilities=[meant], ctx=ctx)
        if args and is_model(args[0]):
            args = ["run", *args]
        if not args and not ctx.resilient_parsing:
            args = ["--help"]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands, or a model; files come first, because bash drops the candidates before them."""
        return [*places("file")(ctx, self.params[0], incomplete), *super().shell_complete(ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word != "help" and word not in COMMANDS and not ctx.resilient_parsing:
            message = f"No such command {word!r}."
            if os.path.isdir(word):
                message += f" Did you mean qrun check ./{word}, all models in that folder?"
            elif os.path.exists(word):
                message += f" Did you mean qrun ./{word}, the file of that name?"
            else:
                near = close_matches(word, COMMANDS)
                message += f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(message, ctx=ctx)
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        from qrun.cli._help import HelpText

        formatter = HelpText(ctx)
        title, *lines = USAGE.splitlines()
        formatter.write(f"{formatter.style(title, bold=True)}\n")
        formatter.write_lines(lines)
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    ("-V, --version", "Show versions, CPU and instruction set, for a bug report."),
                    ("-h, --help", "Show this message and exit."),
                ]
            )
        with formatter.section("Environment"):
            formatter.write_dl(ENVIRONMENT)
        formatter.write_paragraph()
        formatter.write_text(CLOSING)
        return formatter.getvalue().rstrip("\n")


def versions() -> str:
    """What a bug report needs, one fact per line: the versions of qrun, Python and the packages that qrun uses, the
    system, the CPU and its instruction set."""
    from importlib.metadata import PackageNotFoundError, version

    from qrun import __version__
    from qrun.running.cpus import usable_cpus
    from qrun.running.machine import processor

    lines = [f"qrun {__version__}", f"Python {platform.python_version()}", f"{platform.system()} {platform.release()}"]
    lines += [f"CPU {processor()}, {usable_cpus()} usable", f"instructions {_instructions()}"]
    for package in ("numpy", "onnx", "llvmlite", "onnxruntime"):
        try:
            lines.append(f"{package} {version(package)}{_why_unusable() if package == 'onnxruntime' else ''}")
        except PackageNotFoundError:
            lines.append(f"{package} not installed")
    return "\n".join(lines)


def _instructions() -> str:
    """The instruction set of the native kernels, or why there are none."""
    from qrun.native.emit.isa import choose
    from qrun.native.errors import Declined

    try:
        return choose().name
    except (Declined, ImportError, OSError) as error:  # without llvmlite, or where its library cannot be loaded
        return f"none: {error}"


def _why_unusable() -> str:
    """Why the installed onnxruntime cannot be used; "" if it can. Of these packages, only it may be missing."""
    from qrun.child import Crash, Failed, current_child

    try:
        current_child().ask("version", "ort")
    except (Failed, Crash) as error:
        return f", which cannot be imported: {str(error).splitlines()[0]}"
    return ""


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(versions())
        ctx.exit()


@click.command("qrun", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-V", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version)
def group() -> None:
    """Run, check and profile quantized ONNX models."""


@click.command("help", cls=Command, hidden=True)
@click.argument("name", required=False)
@click.pass_context
def help_command(ctx: click.Context, name: str | None) -> None:
    """Show the help of qrun or of a command."""
    assert ctx.parent is not None
    if name is None:
        click.echo(ctx.parent.get_help())
        return
    _, command, _ = group.resolve_command(ctx.parent, [name])
    assert command is not None
    click.echo(command.get_help(click.Context(command, info_name=name, parent=ctx.parent)))
