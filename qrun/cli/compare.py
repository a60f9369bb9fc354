"""``qrun compare``: two runtimes, two models, two saved results, or a run and its record."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrun.cli._base import argument, define, format_options, heading, print_json
from qrun.cli._comparisons import KINDS, OWN
from qrun.cli._options import (
    OTHERS,
    Distance,
    Seconds,
    general_options,
    input_options,
    memory_option,
    time_option,
    tolerance_options,
)
from qrun.cli.profile import Top
from qrun.errors import CallError, absent

if TYPE_CHECKING:
    from qrun.report.screen import Out

run, tolerance, output = map(heading, ("Run", "Tolerance", "Output"))

AGAINST = ("ort", "ort-optimized", "onnx-ref", *OWN)


@define(
    "compare",
    examples=[
        "qrun compare m.onnx -i x.npy                      # with ONNX Runtime",
        "qrun compare m.onnx -i x.npy --against fused      # QDQ groups fused",
        "qrun compare float.onnx int8.onnx -i x.npy        # what int8 costs",
        "qrun compare float.onnx a.onnx b.onnx -i sets/    # several, ranked",
        "qrun compare m.onnx -i x.npy --record golden/     # then: m.onnx golden/",
        "qrun compare before.json after.json               # also a.npz b.npz",
    ],
    notes="Exit code 0 if all is equal within the tolerance (or reaches --min-sqnr; of several models the best one), 1 if not. A float "
    "model against a quantized one is a measurement, with exit code 0, unless --min-sqnr, --rtol, --atol or --lsb says what to reach. Two "
    "models take several sets of inputs: -i for each, or a folder of .npz files or test_data_set_* folders. A cause is named only if computing the node in this "
    "way gives the other side's bits. Between runtimes, without --atol, sums (of Conv, MatMul, AveragePool ...) may also differ by 16 eps (float32 "
    "epsilons) of their tensor's largest magnitude, and what elementwise nodes make of them; --lsb counts dequantized steps too, also of two models.",
)
@argument("a", about="A model, or - for stdin; or a result saved with --json or -o.")
@argument(
    "others",
    about="What to compare it with: a second model or result, a recorded directory, or several models, to be ranked.",
    nargs=-1,
    metavar="[B]...",
)
@input_options
@run(
    "--against",
    "Second side for the same model: another runtime (ort: node by node, ort-optimized: as its users run it), "
    "qrun's other backend, or QDQ groups fused or literal.",
    type=AGAINST,
    show_default="ort",
)
@run(
    "--arith", "Compare qrun's exact arithmetic with this one; with --against, qrun computes in this one.", type=OTHERS
)
@run(
    "--emulate",
    "Compare what onnxruntime computes on x86 CPUs without VNNI, where pairs of products saturate, with what it computes on others; both are emulated, on any CPU.",
    type=("avx2",),
)
@run("--isolate", "Feed every node the second side's values, so that errors do not add up.")
@run(
    "--record DIR",
    "Save hashes and statistics of all tensors, to compare other machines and versions with.",
    show_default="of qrun, or of --against",
)
@run(
    "--budget TIME",
    "Two or more models: time limit for measuring what each node costs, for all models together, e.g. 10m; none for no limit.",
    type=Seconds(),
    show_default="60s",
)
@memory_option(run)
@time_option(run)
@tolerance_options(
    tolerance,
    "tensors",
    {"show_default": "0.001; 0 between qrun's backends"},
    {"show_default": "1e-07; 0 between qrun's backends"},
)
@tolerance(
    "--min-sqnr DB",
    "Two models: signal-to-noise ratio (SQNR) in dB that each output must reach, in place of --rtol and --atol; the list of nodes to keep in float is then as long as that takes.",
    type=Distance(0),
)
@output("--top N", "Differing tensors to list, or 'all'.", type=Top(), default=10)
@format_options("text", "json", "markdown")
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Find the first tensor where two runtimes, models or runs differ."""
    options["b"] = next(iter(options["others"]), None)
    kind = kind_of(options)
    for name in ("min-sqnr", "budget"):
        if kind not in ("models", "candidates") and options[name.replace("-", "_")] is not None:
            raise unfit(
                f"--{name} is for two models",
                f"qrun compare FLOAT QUANTIZED --{name} ...",
                f"{options['a']}",
                f"leave out --{name}, or give a second model",
            )
    from qrun.report.sheet import print_sheet

    shown = KINDS[kind](options, out)
    code = shown.exit_code
    top = None if options["top"] == "all" else options["top"]
    if options["format"] == "json":
        print_json(out, {**shown.fields(), "equal": shown.equal}, code)
    else:
        print_sheet(out, shown.sheet(top), options["format"] == "markdown")
    return code


def kind_of(options: Mapping[str, Any]) -> str:
    """What A and B are. Raises CallError where they do not go together."""
    a, b = options["a"], options["b"]
    _refuse_inputs([a, *options["others"]], options["inputs"])
    if options["others"][1:]:
        refuse(options, ("against", "arith", "emulate", "isolate", "record"))
        return "candidates"
    first, second = _suffix(a), _suffix(b) if b else ""
    files = first in (".npz", ".json")
    if b in ("", "-") or options["record"] == "":
        raise unfit("B and --record name files, - is for A only", "a path", "-" if b == "-" else "an empty name")
    if b is None:
        if files:
            raise unfit("a second file is missing", f"two {first} files", a, f"qrun compare {a} OTHER{first}")
        for name in ("against", "arith", "record"):
            if options["emulate"] and options[name]:
                got = f"--emulate {options['emulate']} --{name} {options[name]}"
                message = f"--emulate compares two sides of its own, without --{name}"
                raise unfit(message, "one of them", got, f"leave out --{name}")
        return "record" if options["record"] else "runtimes"
    if files or second in (".npz", ".json"):
        if first != second:
            raise unfit("these two cannot be compared", "two .npz files, or two .json files", f"{a} and {b}")
        refuse(options, ("against", "arith", "emulate", "isolate", "record", "inputs", "random", "shape"))
        return first[1:]
    if options["record"]:
        raise unfit("--record takes one model", "qrun compare MODEL --record DIR", f"{a} and {b}", "leave B out")
    if os.path.isdir(b):
        refuse(options, ("emulate", "isolate"))
        return "recorded"
    if not second and not os.path.exists(b):
        why, fix = absent(b)
        fixes = [fix or f"qrun compare {shlex.quote(a)} --record {shlex.quote(b)} makes a record"]
        raise CallError("QR004", f"cannot read {b!r} as a model, file or record: {why}", where=[b], fixes=fixes)
    refuse(options, ("against", "arith", "emulate", "isolate"))
    return "models"


def _refuse_inputs(paths: Sequence[str], inputs: Sequence[str]) -> None:
    """Refuse arrays beside models: they are inputs, which stand behind -i."""
    models = [path for path in paths if _suffix(path) not in (".npy", ".npz", ".json")]
    arrays = [path for path in paths if _suffix(path) in (".npy", ".npz")]
    if models and arrays:
        given = [word for path in (*inputs, *arrays) for word in ("-i", path)]
        fix = shlex.join(["qrun", "compare", *models, *given])
        raise unfit(f"{arrays[0]} holds arrays, and {models[0]} is a model", "models", " and ".join(paths), fix)


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def refuse(options: Mapping[str, Any], names: tuple[str, ...]) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise unfit(
            f"{given[0]} does not fit these arguments",
            f"qrun compare A B without {', '.join(given)}",
            f"{options['a']} and {options['b']}",
            f"leave out {given[0]}, or B",
        )


def unfit(message: str, expected: str, got: str, fix: str = "qrun compare -h") -> CallError:
    return CallError("QR005", message, facts=[("expected", expected), ("got", got)], fixes=[fix])
