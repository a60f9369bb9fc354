"""The first lines of a report: the model, its contents, its inputs; and the same for JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.documents.answers import FedInput, ModelFile
from qrun.errors import some
from qrun.io.feeds import COUNTED, EMPTY, FULL
from qrun.ir import Model
from qrun.ir.compound import tensors
from qrun.ir.types import describe, sizes_text, type_name
from qrun.report.screen import Screen
from qrun.report.text import file_size, plural, width_of
from qrun.running.cpus import usable_cpus

if TYPE_CHECKING:
    from qrun.documents.answers import FedInput, ModelFile
    from qrun.io.inputs import Feeds

INPUTS_SHOWN = 3


@frozen
class Headline:
    """A model in a line or two: its name, facts about it, and its inputs."""

    name: str
    facts: str
    inputs: str = ""


def headline(model: Model, feeds: Feeds | None = None, label: str = "") -> Headline:
    """``mnv2.onnx  opset 13, 101 nodes, 3.6 MB, QOperator int8   image float32 [1,3,224,224] from x.npy``."""
    from qrun.report.modelfacts import ModelFacts

    facts = [f"opset {model.opsets['']}"] if "" in model.opsets else []
    facts += [plural(len(model.nodes), "node")]
    facts += [file_size(model.size)] if model.size else []
    facts += [ModelFacts(model).brief] + ([label] if label else [])
    return Headline(model.label, ", ".join(facts), inputs_text(feeds) if feeds else "")


def print_headline(screen: Screen, head: Headline) -> None:
    name, facts, inputs = screen.clean(head.name), f"  {head.facts}", f"   {head.inputs}" if head.inputs else ""
    if screen.width is not None:
        name = screen.shorten(name, max(screen.width - width_of(facts), screen.width // 2))
        if width_of(name + facts + screen.clean(inputs)) > screen.width:
            screen.wrapped("", "  ", (name, "bold"), (facts, "dim"))
            if inputs:
                screen.wrapped("", "  ", (head.inputs, "dim"))
            return
    screen.line((name, "bold"), (f"{facts}{inputs}", "dim"))


def inputs_text(feeds: Feeds) -> str:
    parts = []
    for name, array in list(feeds.arrays.items())[:INPUTS_SHOWN]:
        source = feeds.sources.get(name, "")
        parts.append(f"{name} {describe(array)} {origin(source)}".rstrip())
    if len(feeds.arrays) > INPUTS_SHOWN:
        parts.append(f"and {len(feeds.arrays) - INPUTS_SHOWN} more inputs")
    bound = sizes_text(feeds.symbols)
    return "; ".join(parts) + (f" ({bound})" if bound and parts else "")


def origin(source: str) -> str:
    """The source of an input, to be put behind its name: ``from x.npy``, ``random, seed 0``, ``full``."""
    return f"from {source}" if source and not _is_random(source) else source


def _is_random(source: str) -> bool:
    """Whether qrun generated the input."""
    return source in (FULL, EMPTY, COUNTED) or source.startswith("random")


def chance(sources: Mapping[str, str]) -> str:
    """A sentence for a verdict if inputs are random: `` Inputs are random, seed 0.``; "" if none is."""
    made = [name for name, source in sources.items() if source.startswith("random")]
    if not made:
        return ""
    these = f"{some(made, INPUTS_SHOWN)} {'is' if len(made) == 1 else 'are'}"
    who = "Inputs are" if all(map(_is_random, sources.values())) else these
    return f" {who} {sources[made[0]]}."


def input_fields(feeds: Feeds, hashes: bool = False) -> list[FedInput]:
    """The inputs and their sources. hashes: include a digest of each."""
    from qrun.io.storable import digest

    return [
        FedInput(part, type_name(a.dtype), a.shape, feeds.sources.get(name, ""), digest(a) if hashes else "")
        for name, value in feeds.arrays.items()
        for part, a in tensors({name: value}).items()
    ]


def model_fields(model: Model) -> ModelFile:

    opsets = {domain or "ai.onnx": version for domain, version in model.opsets.items()}
    path = str(model.path) if model.path else None
    return ModelFile(path, model.sha256, model.ir_version, model.producer, opsets, len(model.nodes))


def environment(backend: str, label: str = "") -> dict[str, Any]:
    """The versions and thread settings that a result may depend on."""
    from importlib.metadata import version

    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": version("onnx"),
        "machine": platform.machine(),
        "backend": backend,
        "runtime": label or "qrun",
        "cpus": usable_cpus(),
        "threads": {name: os.environ[name] for name in names if name in os.environ},
    }
