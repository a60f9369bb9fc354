"""Time qrun's native engine against onnxruntime and OpenVINO, on networks that scripts/make_networks.py writes.

    python scripts/bench.py [DIR] [--models NAME,...] [--formats qop,qdq,dynamic,float,half] [--threads 1,2]
                            [--batch 1,8] [--rounds 30] [--engines qrun,ort,openvino] [--no-amx] [--json FILE]
                            [--markdown] [--startup] [--memory] [--profiling] [--lengths]

DIR holds NAME-FORMAT.onnx and NAME-x.npy, or NAME-x.npz for several inputs; what is missing is made in a temporary
folder, in the formats that make_networks.py has for the network. Needs the extras `bench` (onnxruntime, OpenVINO) and,
to make networks, `dev`. An engine that is missing, refuses the model,
crashes or computes something else than the others is named and not timed.

How: each engine has a process of its own, so that none pins or keeps busy another one's threads. They run in turn: in a
round each engine runs the model three times in a row, or for 20 ms if that is more, each run is timed, and when its
threads are asleep (onnxruntime's spin for 25 ms) the next engine begins; every round another one is first. The minimum
is compared (it depends least on what else the machine does), the median is shown. In the same rounds a loop of nothing
but the dot-product instruction of qrun's kernels measures that instruction's peak; the best of all models counts.
GMAC/s count the multiply-adds of the model, as `qrun profile` does.

What runs: qrun as its command does, numpy's own products on one thread; onnxruntime the same file, with all
optimizations and as many intra-op threads. On x86 CPUs without VNNI its sums of int8 products saturate, which is wrong
and fast; the engine `ort-precise` is onnxruntime with session.x64quantprecision=1, where they do not. OpenVINO cannot
read QOperator files: on a `qop` line it runs the QDQ file of the network, on as many threads, one stream, latency hint,
with floats as float32 (its default is bfloat16 where the CPU has that).
All use AMX where the CPU has it, onnxruntime only for matrix products. `--no-amx` limits OpenVINO to AVX512-VNNI
(ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI); onnxruntime has no such switch. The engine `openvino-noamx` is that too, to have
both side by side. `--batch N` feeds N different images; the rewritten model must give the same outputs as N single
images. Dynamically quantized networks, whose scales are of the whole batch, and networks of one size have batch 1 only.
`decoder-float` and `decoder-4bit` are one step of four layers 1024 wide, with 128 places in the cache; batch 1 only.

Correct: qrun's integer tensors, all of the graph, must have the bits of its reference backend; other engines may differ
by a quarter of the largest output.

--lengths: the first run with new sizes, the second and later ones, of qrun and onnxruntime in turn: batches of the
encoders asked for with 20 lengths of text, and a decoder whose cache grows with each of 40 steps.
--profiling: how much longer qrun's runs take when they are profiled, on squeezenet or else the first model.
--startup: each engine in new processes, in turn: making the session, first run, later runs. --memory: the largest
resident set of a process that imports one engine, loads the network and runs it six times. Both use resnet50, or else
the first model, the first format and number of threads. --startup also starts whole processes in turn, from the shell
to the answer: `qrun MODEL --inputs X` with its cache filled and empty beside a script of five lines that asks
onnxruntime, on the network of models/digits and on squeezenet qdq, resnet50 qop, densenet121 qdq and transformer
dynamic (those asked for, or else the first model and format); of each also session and first run in Python, beside
onnxruntime's; and commands that compute nothing, `qrun check` beside `import onnx`. Their minima and ratios of minima
are told, of wall and of CPU time. --rounds 0 measures nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _bench_report as report
from _bench_cases import Bench, BenchError, Case, Networks, share_peaks
from _bench_fresh import Fresh
from _bench_lengths import decoder, free_length, new_sizes, sizes_table, steps, texts
from _bench_processes import Processes, processes
from _bench_profiling import overhead
from _engines import ENGINES, installed
from _workers import WorkerError

MODELS = ("resnet50", "squeezenet", "shufflenet", "mobilenetv2", "inception_v1", "inception_v2", "densenet121",
          "transformer", "encoder-8x128", "encoder-1x16", "encoder-1x384", "small-nodes",
          "tagger-lstm-1", "tagger-lstm-8", "tagger-gru-1", "tagger-gru-8", "4bit-level0-1", "4bit-level4-1",
          "4bit-level0-32", "4bit-level4-32", "4bit-level0-128", "4bit-short-1", "4bit-short-4", "4bit-qdq-1",
          "decoder-float", "decoder-4bit")  # fmt: skip
FORMATS = ("qop", "qdq", "dynamic", "float", "half")
PROFILED = 300
"""Rounds of --profiling."""


def main(words: Sequence[str] | None = None) -> int:
    options = parse(words)
    found: dict[str, Any] = {}
    code = 0
    try:
        measure(options, found)
    except (BenchError, WorkerError, OSError) as error:
        print(f"bench.py: error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("bench.py: interrupted", file=sys.stderr)
        code = 130
    if "results" in found:
        tell(found, options)
    return code


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--models", type=_list(str), default=list(MODELS), metavar="NAME,...")
    parser.add_argument("--formats", type=_list(_one_of(FORMATS)), default=list(FORMATS), metavar="NAME,...")
    parser.add_argument("--threads", type=_list(_count), default=[1, 2], metavar="N,...")
    parser.add_argument("--batch", type=_list(_count), default=[1, 8], metavar="N,...")
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    engines = ["qrun", "ort", "openvino"]
    parser.add_argument("--engines", type=_list(_one_of(ENGINES)), default=engines, metavar="NAME,...")
    parser.add_argument("--no-amx", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables as they stand in docs/internals/benchmarks.md"
    )
    parser.add_argument("--startup", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--profiling", action="store_true")
    parser.add_argument("--lengths", action="store_true")
    parser.add_argument(
        "--times",
        type=_count,
        default=7,
        metavar="N",
        help="new processes per engine for --startup (for --memory 3 at most)",
    )
    options = parser.parse_args(words)
    if options.no_amx:
        options.engines = [{"openvino": "openvino-noamx"}.get(engine, engine) for engine in options.engines]
    options.engines = list(dict.fromkeys(options.engines))
    return options


def measure(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Everything asked for, into `found`, which becomes the JSON file."""
    if options.folder and not options.folder.is_dir():
        raise BenchError(f"{options.folder} is not a folder")
    isa, instruction = instruction_set()
    found["machine"] = report.machine(isa, instruction)
    found["versions"] = report.versions(options.engines)
    kept = ("models", "formats", "threads", "batch", "rounds", "engines")
    found["settings"] = {name: getattr(options, name) for name in kept}
    found["results"] = []
    with tempfile.TemporaryDirectory(prefix="qrun-bench-") as scratch:
        cache = Path(scratch) / "kernels"
        cache.mkdir(mode=0o700)
        networks = Networks(options.folder, Path(scratch))
        if options.rounds > 0:
            time_cases(Bench(networks, options.engines, options.rounds, str(cache), isa), options, found["results"])
        name = "resnet50" if "resnet50" in options.models else options.models[0]
        fresh = Fresh(networks, name, options.formats[0], options.threads[0], str(cache))
        if options.profiling:
            say("what profiling costs")
            network = "squeezenet" if "squeezenet" in options.models else options.models[0]
            found["profiling"] = [
                overhead(networks, network, kind, threads, PROFILED, str(cache))
                for kind in options.formats
                for threads in options.threads
            ]
        if options.lengths:
            found["lengths"] = list(lengths(networks, options, str(cache)))
        if options.startup:
            say("start-up times")
            found["startup"] = fresh.startup(options.engines, options.times)
            peer = "ort" in options.engines and installed("ort")
            started = processes(networks, options.models, options.formats, peer)
            found["processes"] = Processes(str(cache)).measure(started, options.times)
        if options.memory:
            say("peak memory")
            found["memory"] = fresh.memory(options.engines, min(3, options.times))


def lengths(networks: Networks, options: argparse.Namespace, cache: str) -> Iterator[dict[str, Any]]:
    """What --lengths measures."""
    for threads in options.threads:
        for name in (model for model in options.models if model.startswith("encoder")):
            for kind in (kind for kind in options.formats if networks.has(name, kind)):
                model = free_length(networks.path(name, kind))
                for batch in options.batch:
                    case = f"{name} {kind}, batch {batch}"
                    say(f"new lengths of {case}")
                    yield new_sizes(case, model, texts(model, batch), threads, cache)
        say("a growing cache")
        yield new_sizes("decoder", decoder(), steps(decoder()), threads, cache)


def time_cases(bench: Bench, options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    cases = [
        Case(model, kind, threads, batch)
        for model in options.models
        for kind in [k for k in options.formats if bench.networks.has(model, k)] or options.formats[:1]
        for batch in options.batch
        if bench.networks.takes(model, kind, batch)
        for threads in options.threads
    ]
    for number, case in enumerate(cases, 1):
        try:
            results.append(bench.run(case))
        except WorkerError as error:
            raise BenchError(f"{case}: {error}") from None
        share_peaks(results)
        say(f"{number}/{len(cases)} {case}: {report.line(results[-1])}")


def instruction_set() -> tuple[str, str]:
    """qrun's best instruction set here, and the name of its dot product; empty if there is none."""
    try:
        from qrun.native.emit.isa import available
        from qrun.native.emit.peak import INSTRUCTIONS

        isas = available()
    except ImportError:
        isas = ()
    return (isas[0].name, INSTRUCTIONS[isas[0].dot].name) if isas else ("", "")


def tell(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print what was measured, and write the JSON file."""
    facts, packages = found["machine"], found["versions"]
    peaks = {result["threads"]: result["peak_gmacs"] for result in found["results"]}
    peak = ", ".join(f"{value:.0f} GMAC/s with {threads}" for threads, value in sorted(peaks.items()) if value)
    print(f"{facts['cpu']}, {facts['usable_cpus']} CPUs; qrun uses {facts['isa'] or 'no native kernels'}")
    if peak:
        print(f"peak of {facts['instruction']}, by threads: {peak}")
    print(", ".join(f"{report.NAMES.get(name, name)} {number}" for name, number in packages.items()))
    for title, table in tables(found, options.engines):
        if options.markdown:
            print(f"\n{title}\n\n{report.markdown(table)}")
        else:
            print()
            report.show(title, table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def tables(found: dict[str, Any], engines: Sequence[str]) -> Iterator[tuple[str, report.Table]]:
    if found["results"]:
        yield "Time, minimum / median", report.times_table(found["results"], engines)
    if found.get("profiling"):
        yield "Profiled runs, minimum / median", report.profiling_table(found["profiling"])
    kinds = {"startup": ("Start-up", report.startup_table), "memory": ("Memory of the process", report.memory_table)}
    for key, (title, table) in kinds.items():
        if found.get(key):
            row = found[key][0]
            yield f"{title}: {row['model']} {row['format']}, threads: {row['threads']}", table(found[key])
    if found.get("lengths"):
        yield "New sizes, median", sizes_table(found["lengths"])
    if found.get("processes"):
        yield "Whole processes, minimum", report.processes_table(found["processes"])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _list(item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def convert(text: str) -> list[Any]:
        return [item(part.strip()) for part in text.split(",") if part.strip()] or [item(text)]

    return convert


def _one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return convert


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
