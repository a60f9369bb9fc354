#!/usr/bin/env python3
"""Run real runtimes over random models, and print where the target files of `qrun check --target` are not what they do.

    python scripts/targets.py --venvs DIR [TARGET...] [--seeds FIRST:LAST] [--models FILE...] [--save DIR]
    python scripts/targets.py --venvs DIR onnxruntime-cpu --version 1.27.0
    python scripts/targets.py --venvs DIR onnxruntime-cpu --releases

Each runtime needs a virtual environment of its own in DIR, named after it; --make makes those that are missing:

    DIR/onnxruntime-1.32.0    pip install onnxruntime==1.32.0      one for each release; the newest is compared
    DIR/openvino-2026.4.1     pip install openvino==2026.4.1
    DIR/onnxruntime-qnn-2.7.0 pip install onnxruntime-qnn==2.7.0   Linux x86-64 and Windows; prepares HTP graphs

A model agrees if the file foretells whether it loads, whether its numbers are right (against qrun's; not for QNN, which
is not run), and where each node runs. Disagreements are grouped, with the smallest model of each group: the seed makes
it again (--save writes it). --releases compares the releases of onnxruntime with each other: the verdicts that changed,
for `since` and `until`. Exit code 1 if a share of models is below --least.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from _targets_compare import Tally, changes, foretell
from _targets_models import random_models
from _targets_oracle import Oracle, python_of

from qrun.checking.targets import DeployTarget, find
from qrun.errors import QrunError
from qrun.ir.load import load


@dataclass(frozen=True)
class Runtime:
    """The runtime that tells what is true of a target. package: of pip. versions: to make environments of."""

    name: str
    package: str
    versions: tuple[str, ...]
    executes: bool = True


RUNTIMES = {
    "onnxruntime-cpu": Runtime(
        "onnxruntime", "onnxruntime", ("1.20.1", "1.22.1", "1.24.4", "1.27.0", "1.31.1", "1.32.0")
    ),
    "openvino-cpu": Runtime("openvino", "openvino", ("2026.4.1",)),
    "qnn-htp": Runtime("qnn", "onnxruntime-qnn", ("2.7.0",), executes=False),
}
Named = tuple[str, onnx.ModelProto]


def environments(folder: Path, runtime: Runtime) -> dict[str, str]:
    """The Pythons of a runtime's environments by version, oldest first."""
    start = f"{runtime.package}-"
    found = {path.name.removeprefix(start): python_of(path) for path in folder.glob(f"{start}[0-9]*")}
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")]))


def make(folder: Path, runtime: Runtime) -> None:
    """Make the environments that are missing. Raises RuntimeError with pip's last line."""
    for version in runtime.versions:
        path = folder / f"{runtime.package}-{version}"
        if Path(python_of(path)).exists():
            continue
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
        command = [python_of(path), "-m", "pip", "install", "--quiet", f"{runtime.package}=={version}", "numpy"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip install {runtime.package}=={version}: {done.stderr.strip().splitlines()[-1]}")


def compare(known: DeployTarget, oracle: Oracle, models: Iterable[Named], save: Path | None, execute: bool) -> Tally:
    """Compare a target with its runtime on models, and write those that disagree to `save`. execute: as of `look`."""
    tally = Tally()
    for name, proto in models:
        try:
            model = load(proto.SerializeToString())
            seen = oracle.look(proto, execute)
        except QrunError as error:
            print(f"  {name}: qrun does not load it: {str(error).splitlines()[0]}")
            continue
        if tally.add(name, model, foretell(known, model), seen) and save is not None:
            save.mkdir(parents=True, exist_ok=True)
            onnx.save(proto, save / f"{known.id}-{name.replace(' ', '-')}.onnx")
    return tally


def releases(pythons: Mapping[str, str], runtime: Runtime, models: Iterable[Named]) -> Iterator[str]:
    """The lines of a report of verdicts that changed between releases: each kind of change with its smallest model."""
    oracles = [Oracle(runtime.name, python) for python in pythons.values()]
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    count = 0
    for name, proto in models:
        count, model = count + 1, load(proto.SerializeToString())
        verdicts = {oracle.version: oracle.look(proto, runtime.executes) for oracle in oracles}
        for change in set(changes(model, verdicts)):
            found.setdefault(change, []).append((len(model.nodes), name))
    yield f"  {count} models on {', '.join(oracle.version for oracle in oracles)}"
    for (release, what), several in sorted(found.items()):
        yield f"  since {release}  {what}"
        yield f"      {len(several)} models, smallest: {min(several)[1]}"
    for oracle in oracles:
        oracle.close()


def given(paths: Sequence[Path]) -> Iterator[Named]:
    """Yield the models of files."""
    for path in paths:
        yield path.stem, onnx.load(path)


def seeds(text: str) -> range:
    """The seeds of --seeds, such as 0:150; a random hundred and fifty for ""."""
    if not text:
        first = random.SystemRandom().randrange(1000, 1_000_000)
        return range(first, first + 150)
    first, last = (int(part) for part in text.split(":"))
    return range(first, last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", help=f"{', '.join(RUNTIMES)} (all)")
    parser.add_argument("--venvs", type=Path, required=True, metavar="DIR", help="one environment for each runtime")
    parser.add_argument("--make", action="store_true", help="make the environments that are missing")
    parser.add_argument("--seeds", default="", metavar="FIRST:LAST", help="seeds of random models (150 new ones)")
    parser.add_argument("--models", type=Path, nargs="+", metavar="FILE", help="these models in place of random ones")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the target")
    parser.add_argument(
        "--no-run", action="store_true", help="do not compare numbers, which takes long for large models"
    )
    parser.add_argument("--version", default="", help="a release that the target's file has rules of (the newest)")
    parser.add_argument("--releases", action="store_true", help="compare the releases of a runtime with each other")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the models that disagree here")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT", help="least share of models that agree")
    options = parser.parse_args()
    if unknown := set(options.target) - set(RUNTIMES):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; expected {', '.join(RUNTIMES)}")
    among = seeds(options.seeds)
    if not options.models:
        print(f"random models of seeds {among.start}:{among.stop}")
    good = True
    for target in options.target or RUNTIMES:
        runtime = RUNTIMES[target]
        try:
            if options.make:
                make(options.venvs, runtime)
            pythons = environments(options.venvs, runtime)
            if not pythons:
                raise RuntimeError(f"{options.venvs} has no {runtime.package}-VERSION; --make makes it")
            good &= _report(target, pythons, options, among)
        except RuntimeError as error:
            print(f"{target}: {error}")
            good = False
    sys.exit(not good)


def _report(target: str, pythons: Mapping[str, str], options: argparse.Namespace, among: range) -> bool:
    """Print what is asked of a target. Returns whether its share is large enough."""
    runtime = RUNTIMES[target]
    models = given(options.models) if options.models else random_models(among)
    if options.releases:
        print(f"{target}: verdicts that changed between releases")
        for line in releases(pythons, runtime, models):
            print(line)
        return True
    settings: dict[str, Any] = {}
    for text in options.option:
        key, value = text.split("=", 1)
        settings[key] = int(value) if value.isdigit() else value
    version = options.version or list(pythons)[-1]
    if version not in pythons:
        raise RuntimeError(f"no environment for version {version}; there are {', '.join(pythons)}")
    known = find(target, options.version, settings)
    oracle = Oracle(runtime.name, pythons[version], runtime_options(target, known.options))
    print(f"{target}: rules of {known.version}, {runtime.package} {oracle.version}")
    tally = compare(known, oracle, models, options.save, runtime.executes and not options.no_run)
    oracle.close()
    for line in tally.report():
        print(line)
    return 100 * tally.equal >= options.least * tally.models


def runtime_options(target: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a target's options are called by its runtime."""
    if target == "qnn-htp" and "htp_arch" in settings:
        return {"htp_arch": settings["htp_arch"]}
    if target == "onnxruntime-cpu" and settings.get("int8_allowed"):
        return {"session.qdqisint8allowed": "1"}
    return {}


if __name__ == "__main__":
    main()
