"""The commands that look things up without running a model: ``qrun inspect``, ``qrun ops``, ``qrun explain``, ``qrun
cache`` and ``qrun completion``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qrun.cli._base import COMPLETE, Choice, argument, define, format_options, heading, model_argument, print_json
from qrun.cli._options import custom_operators, deploy_targets, general_options, read_model, target_option
from qrun.errors import some

if TYPE_CHECKING:
    from qrun.report.screen import Out

output, kept = map(heading, ("Output", "Cache"))


@define(
    "inspect",
    examples=[
        "qrun inspect m.onnx",
        "qrun inspect m.onnx --nodes | grep conv",
        "qrun inspect m.onnx -t '*_scale'",
        "qrun inspect m.onnx --target tensorrt",
    ],
)
@model_argument
@output("--nodes", "List every node with types and shapes.")
@target_option(output, "List every node with what this target does with it (qrun check --target has the reasons).")
@output("-t, --tensor PATTERN", "Show stored tensors whose name matches. Repeatable.", multiple=True)
@format_options("text", "json")
@custom_operators
@general_options()
def inspect(out: Out, model: str, nodes: bool, target: tuple[str, ...], tensor: tuple[str, ...], format: str) -> None:
    """Show inputs, outputs, operators and quantization of a model."""
    from qrun.documents.record import encode
    from qrun.ir.infer import with_inferred
    from qrun.ir.load import load
    from qrun.ops import expansion
    from qrun.report.inspect import inspect_answer, inspection, match_stored, print_nodes, print_overview
    from qrun.report.modelfacts import ModelFacts
    from qrun.report.stats import print_arrays

    known = deploy_targets(target)
    nodes = nodes or bool(known)
    source = read_model(model, ())
    loaded = load(source, source="stdin" if model == "-" else "", spared=not tensor)
    if loaded.missing_files:
        files = some(loaded.missing_files)
        out.note(f"QR104: external data missing: {files}, next to the model; shown without them")
    facts = ModelFacts(with_inferred(loaded, source if loaded.path is None else loaded.path, expansion))
    tensors = match_stored(facts, tensor) if tensor else None
    if format == "json":
        print_json(out, encode(inspection(facts, nodes, tensors, known)), inspect_answer(facts))
        return
    if not nodes and tensors is None:
        print_overview(out.result, facts)
    if nodes:
        print_nodes(out.result, facts.model, known)
    if tensors is not None:
        if nodes:
            out.result.line()
        print_arrays(out.result, tensors)


@define(
    "ops",
    examples=["qrun ops", "qrun ops QLinear", "qrun ops --json"],
    notes="Types: u8 uint8, i8 int8, f32 float32, bf16 bfloat16, f8 the float8 types. Exit code 1 if NAME matches nothing.",
)
@argument("name", about="Only operators with this in their name.", required=False, shell_complete=None)
@format_options("text", "json")
@custom_operators
@general_options()
def ops(out: Out, name: str | None, format: str) -> int:
    """List supported operators, versions and types."""
    from qrun.report.answer import Answer
    from qrun.report.ops import count_text, matching_operators, ops_fields, print_ops, supported_operators, why_missing

    known = supported_operators()
    shown = matching_operators(known, name) if name else known
    code = 0 if shown else 1
    if not shown:
        out.messages.wrapped("", "  ", why_missing(name or ""))
    if format == "json":
        print_json(out, ops_fields(shown, len(known)), Answer(code, count_text(shown, len(known))))
    else:
        print_ops(out.result, shown, len(known), name or "")
    return code


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from qrun.report.explain import names

    return [name for name in names() if name.lower().startswith(incomplete.lower())]


@define(
    "explain",
    examples=["qrun explain QR301", "qrun explain QLinearConv", "qrun explain sqnr"],
    notes="Topics: inputs, image, exit-codes, config, environment, completion, json, numerics, causes, dumps, conform, roof, custom-operators, glossary. Without TOPIC: everything that can be explained.",
)
@argument(
    "topic",
    about="A code, a rule, a cause, an operator, a target, a topic or a word of the glossary.",
    required=False,
    shell_complete=_complete,
)
@format_options("text", "json")
@general_options()
def explain(out: Out, topic: str | None, format: str) -> None:
    """Explain a rule, an operator or a topic, offline."""
    from qrun.report.answer import Answer
    from qrun.report.explain import page

    found = page(topic, verbose=out.verbose > 0)
    if format == "json":
        print_json(out, found.fields, Answer(0, found.title))
    else:
        found.show(out.result)


@define(
    "cache",
    examples=["qrun cache", "qrun cache --list", "qrun cache --clear", "QRUN_CACHE_SIZE=2GB qrun m.onnx -i x.npy"],
    notes="QRUN_CACHE_DIR sets the folder, QRUN_CACHE_SIZE its size limit. qrun removes the least recently used files first, and creates missing ones again.",
)
@output("-l, --list", "List every file, the most recently used one first.", into="every")
@kept("--clear", "Remove all files, including those that killed processes left behind.")
@format_options("text", "json")
@general_options()
def cache(out: Out, every: bool, clear: bool, format: str) -> int:
    """Show or clear the cache."""
    from qrun.native.machine.cache import ObjectCache, default_directory
    from qrun.report.answer import Answer
    from qrun.report.cache import cache_fields, cache_line, print_cache

    store = ObjectCache(default_directory())
    removed = store.clear() if clear else None
    entries = store.entries()
    if format == "json":
        print_json(out, cache_fields(store, entries, removed), Answer(0, cache_line(store, entries)))
    else:
        print_cache(out.result, store, entries, removed, every)
    return 0


@define(
    "completion",
    examples=[
        'eval "$(qrun completion bash)"       # in ~/.bashrc',
        'eval "$(qrun completion zsh)"        # in ~/.zshrc',
        "qrun completion fish | source        # in ~/.config/fish/config.fish",
    ],
)
@argument("shell", about="bash, zsh or fish.", type=Choice(["bash", "zsh", "fish"]), shell_complete=None)
@general_options()
def completion(out: Out, shell: str) -> None:
    """Print the script that completes commands after the Tab key."""
    from click.shell_completion import get_completion_class

    from qrun.cli._group import group

    found = get_completion_class(shell)
    assert found is not None
    script = found(group, {}, "qrun", COMPLETE)
    out.result.write((found.source_template % script.source_vars()).rstrip())
