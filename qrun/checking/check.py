"""The work of ``qrun check``: finds and loads models, applies the rules and replays vectors, also in several processes.
Nothing in a file stops it: every problem becomes a finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns

from qrun.checking.deploy import BOUNDS, TargetResult, at_least, is_of_target, judge_for, rule_ids, target_findings
from qrun.checking.rules import LEVELS, RULES, Finding, Rule, nodes_before, once, order, shape_inference
from qrun.checking.rules._foretold import foretold
from qrun.checking.rules._rule import as_finding
from qrun.checking.rules._scope import Shape
from qrun.checking.targets import DeployTarget, Integers, integers
from qrun.checking.vectors import Executor, Vector, not_replayed, replay, vector_folders
from qrun.comparing.differences import Tolerance
from qrun.declare.frozen import frozen, keys
from qrun.errors import CallError, QrunError, RunError, UnsupportedError, choose
from qrun.ir import Model
from qrun.ir.load import load, no_model
from qrun.ops import check_arith, integer_engine
from qrun.running.plan import BACKENDS
from qrun.running.session import RunResult, Session

MakeRunner = Callable[[Model, Path], Executor]
"""Returns a backend that is ready to run a model. Raises UnsupportedError if it cannot run it."""


@frozen
class Settings:
    """The settings of a check.

    selected:  ids of the findings to report. named: the ids that the user chose by name.
    data:      folders with vectors; None: the folders beside each model; (): none.
    per_file:  settings by path pattern; the first pattern that matches a model applies.
    targets:   judge each model for these too. ignored: ids of rules of targets whose findings are not reported.
    """

    selected: frozenset[str]
    tolerance: Tolerance = field(default_factory=Tolerance)
    data: Sequence[Path] | None = None
    per_file: Mapping[str, Settings] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    targets: tuple[DeployTarget, ...] = ()
    ignored: frozenset[str] = frozenset()

    def of(self, path: Path) -> Settings:
        """The settings for one model."""
        names = {path.as_posix(), shown_path(path)}
        for pattern, settings in self.per_file.items():
            if any(fnmatchcase(name, pattern) for name in names):
                return replace(settings, data=self.data, targets=self.targets)
        return self


@frozen
class Checked:
    """The result for one model. findings: worst first, then in graph order. nodes: the number of its nodes. rules: the
    ids of the rules that judged it.

    sha256: the hash of its content; "" if it cannot be read. integers: which of its nodes onnxruntime computes in
    integers on x86 CPUs; None without quantized activations. targets: the result for each target of the settings.
    """

    KEYS = keys("path=name sha256=hash nodes rules time_ms integers targets findings vectors")

    path: Path
    findings: tuple[Finding, ...] = ()
    vectors: tuple[Vector, ...] = ()
    nodes: int = 0
    rules: tuple[str, ...] = ()
    duration_ns: int = 0
    sha256: str = ""
    integers: Integers | None = None
    targets: tuple[TargetResult, ...] = ()

    @property
    def name(self) -> str:
        return shown_path(self.path)

    @property
    def hash(self) -> str | None:
        return self.sha256 or None

    @property
    def time_ms(self) -> float:
        return self.duration_ns / 1e6


@frozen
class Since:
    """What was left out because of a baseline. known: findings that it has too; gone: findings that only it has."""

    known: int
    gone: int


FAIL_ON = (*LEVELS, "never", *BOUNDS)
"""The levels from which on a finding can make a check fail; consequences are for findings of targets, of which those of
the level error are `refused` or worse."""


@frozen(slots=False)
class Report:
    """The results for all models, with the settings that a reader of the report needs. since: None without a
    baseline."""

    models: tuple[Checked, ...]
    backend: str
    arith: str
    tolerance: Tolerance
    fail_on: str = "error"
    since: Since | None = None
    targets: tuple[DeployTarget, ...] = ()

    @cached_property
    def findings(self) -> tuple[tuple[Checked, Finding], ...]:
        return tuple((model, finding) for model in self.models for finding in model.findings)

    @property
    def has_targets(self) -> bool:
        """Was any model judged for a target?"""
        return any(model.targets for model in self.models)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        return tuple(vector for model in self.models for vector in model.vectors)

    def count(self, level: str) -> int:
        return sum(finding.level == level for _, finding in self.findings)

    def is_failing(self, finding: Finding) -> bool:
        """Is the finding at or above the level that makes the check fail? A consequence is a bound for findings of
        targets; others then count from the level error on."""
        if self.fail_on in BOUNDS:
            return at_least(finding, self.fail_on) if is_of_target(finding) else finding.level == "error"
        return self.fail_on in LEVELS and LEVELS.index(finding.level) <= LEVELS.index(self.fail_on)

    @property
    def failed(self) -> bool:
        return any(self.is_failing(finding) for _, finding in self.findings)


def not_judged(models: Sequence[Checked], settings: Settings) -> tuple[list[str], bool]:
    """The codes that the user named but that could not be judged, because they need a run and no model has vectors; and
    whether the user named no others.

    Files that cannot be read do not count: they have a finding."""
    read = [m for m in models if m.sha256]
    if not read or any(m.vectors for m in read) or any(settings.of(m.path).named != settings.named for m in read):
        return [], False
    missing = [id for id in sorted(settings.named) if id.startswith("QR5") or (id in RULES and RULES[id].needs_run)]
    return missing, len(missing) == len(settings.named)


def find_models(paths: Sequence[str]) -> list[Path]:
    """The given files, and the .onnx files below given folders, each once. Raises CallError for a path without any."""
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        below = list(_below(path)) if os.path.isdir(path) else [path]
        if not os.path.exists(path):
            raise no_model(given)
        if not below:
            fixes = ["name a folder that holds models, or the files themselves"]
            raise CallError("QR004", f"no .onnx file in {given!r} or below it", where=[given], fixes=fixes)
        found |= dict.fromkeys(below)
    return list(found)


def _below(folder: Path) -> Iterator[Path]:
    """Yield the .onnx files in a folder and its subfolders, except hidden folders and virtual environments."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and not os.path.isfile(os.path.join(parent, name, "pyvenv.cfg"))
        )
        yield from (Path(parent) / name for name in sorted(files) if name.lower().endswith(".onnx"))


def check_models(
    paths: Sequence[Path], settings: Settings, make: MakeRunner, *, progress: Callable[[int], None] | None = None
) -> list[Checked]:
    """Check each model. Calls `make` only for models with vectors, and `progress` with the number of models done."""
    done = []
    for place, path in enumerate(paths):
        if progress is not None:
            progress(place)
        done.append(check_model(path, settings.of(path), make))
    return done


def check_model(path: Path, settings: Settings, make: MakeRunner) -> Checked:
    """Check one model and its vectors."""
    start = perf_counter_ns()
    rules: tuple[str, ...] = ()
    vectors: list[Vector] = []
    nodes, sha256, codes = 0, "", None
    results: tuple[TargetResult, ...] = ()
    try:
        model = load(path)
    except QrunError as error:
        found = [as_finding(error)]
        vectors = _refusal(vector_folders(path, settings.data), error)
    else:
        nodes, sha256, codes = len(model.nodes), model.sha256, _integers(model)
        rules = tuple(id for id in RULES if id in settings.selected)
        vectors = _replay(model, path, settings, make)
        inferred = shape_inference(model, model)
        found = [f for id in rules for f in _with_inputs(model, RULES[id], vectors, inferred)]
        found += foretold(model, found, inferred)
        found += _run_findings(model, rules, [v.result for v in vectors if v.result is not None])
        if not any(v.result and v.result.events for v in vectors):
            rules = tuple(id for id in rules if not RULES[id].needs_run)
        _explain(model, vectors, found)
        found = once([*found, *_of_vectors(vectors, found)], model)
        results = tuple(judge_for(target, model) for target in settings.targets)
        rules += tuple(id for id in rule_ids(settings.targets) if id not in settings.ignored)
    found = [f for f in found if f.rule in settings.selected]
    found += [f for result in results for f in target_findings(result) if f.rule not in settings.ignored]
    if "QR505" in settings.selected:
        found += not_replayed(vectors, found)
    found.sort(key=order)
    for vector in vectors:
        vector.result = vector.feeds = None
    return Checked(path, tuple(found), tuple(vectors), nodes, rules, perf_counter_ns() - start, sha256, codes, results)


def _integers(model: Model) -> Integers | None:
    """The nodes that onnxruntime's default session computes in integers; None without groups, or if it does not run."""
    found = integers(model)
    if found is None or any(cause.rule.otherwise == "refused" for cause in found.causes):
        return None
    return None if any(True for _ in RULES["QR609"].find(model, None)) else found


def _replay(model: Model, path: Path, settings: Settings, make: MakeRunner) -> list[Vector]:
    folders = vector_folders(path, settings.data)
    if not folders:
        return []
    try:
        runner = make(model, path)
    except QrunError as error:
        return _refusal(folders, error)
    return [replay(model, runner, folder, settings.tolerance) for folder in folders]


def _refusal(folders: Sequence[Path], error: QrunError) -> list[Vector]:
    """Vectors that were not replayed, all because of the same error."""
    vectors = [Vector(folder.name, folder) for folder in folders]
    for vector in vectors:
        vector.refuse(error)
    return vectors


def _with_inputs(
    model: Model, rule: Rule, vectors: Sequence[Vector], inferred: Callable[[], Mapping[str, Shape]] | None
) -> list[Finding]:
    """The findings of a rule. A rule over inputs gets those of the first vector; if `every` is set, a finding must hold
    for all vectors."""
    ran = [v for v in vectors if v.feeds is not None] if rule.fed else []
    if not ran:
        return list(rule.find(model, None, inferred=inferred))
    found = list(rule.find(model, ran[0].result, ran[0].feeds))
    for vector in ran[1:] if rule.every else ():
        again = {(f.node, f.tensor) for f in rule.find(model, vector.result, vector.feeds)} if found else set()
        found = [f for f in found if (f.node, f.tensor) in again]
    return found


def _run_findings(model: Model, rules: Sequence[str], results: Sequence[RunResult]) -> list[Finding]:
    """The findings of the rules over runs, each once, however many vectors show it."""
    first: dict[tuple[str, str, str], Finding] = {}
    for result in results:
        for id in rules:
            if RULES[id].runs and not RULES[id].fed:
                for finding in RULES[id].find(model, result):
                    first.setdefault((id, finding.node, finding.tensor), finding)
    return list(first.values())


def _explain(model: Model, vectors: Sequence[Vector], known: Sequence[Finding]) -> None:
    """Make a vector's difference name the error finding of its node, or of a node before it, as a possible cause."""
    wrong: dict[int | None, Finding] = {
        f.index: f for f in reversed(known) if f.level == "error" and f.index is not None
    }
    for vector in vectors if wrong else ():
        vector.findings[:] = [_explain_crash(model, f, wrong) if f.rule == "QR501" else f for f in vector.findings]


def _explain_crash(model: Model, finding: Finding, wrong: Mapping[int | None, Finding]) -> Finding:
    if finding.index is None:
        return finding
    before = nodes_before(model, finding.index)
    cause = next((wrong[index] for index in sorted(before) if index in wrong), None)
    if cause is None:
        return finding
    place = "this node" if cause.index == finding.index else f"node {cause.index} {cause.node} before it"
    why = f"{place} has {cause.rule} {cause.name}: {cause.message}. {finding.why}"
    return replace(finding, why=why.strip(), fix=f"fix {cause.rule} first; then {finding.fix}")


def _of_vectors(vectors: Sequence[Vector], known: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the vectors' findings, without run-time refusals that a rule or another vector has already found."""
    told = {(f.rule, f.index) for f in known}
    for vector in vectors:
        for finding in vector.findings:
            if finding.rule.startswith("QR5"):
                yield finding
            elif (finding.rule, finding.index) not in told:
                told.add((finding.rule, finding.index))
                yield finding


def shown_path(path: Path) -> str:
    """The path with forward slashes, relative to the current folder if it is below it."""
    if path.is_absolute():
        try:
            return path.relative_to(Path.cwd()).as_posix()
        except (OSError, ValueError):
            return path.as_posix()
    return path.as_posix()


def runner_maker(backend: str, arith: str, max_memory: int | None = None, max_time: float | None = None) -> MakeRunner:
    """A function that makes the runner of a model's vectors: qrun with the graph as written, or another runtime.

    Raises CallError for an unknown name, or if backend and arithmetic do not go together, UnsupportedError if the
    runtime is not installed.
    """
    check_arith(arith)
    if backend not in BACKENDS:
        from qrun.peers import PEERS

        choose("backend", backend, (*BACKENDS, *PEERS))
        _check_peer(backend, arith)

    def make(model: Model, path: Path) -> Executor:
        if backend not in BACKENDS:
            from qrun.peers import Peer

            return Peer(model, backend, max_memory=max_memory, max_time=max_time)
        return Session(
            model,
            backend=backend,
            arith=arith,
            fuse=integer_engine(arith) is not None,
            max_memory=max_memory,
            max_time=max_time,
        )

    return make


def check_in_processes(
    paths: Sequence[Path],
    settings: Settings,
    backend: tuple[str, str, int | None, float | None],
    jobs: int,
    progress: Callable[[int], None] | None = None,
) -> list[Checked]:
    """Check models as `check_models` does, in `jobs` processes. backend: the arguments of `runner_maker`;
    progress: called with the number of models done.

    A model that ends its process three times gets that as its finding.
    """
    from qrun.running.crew import run_in_crew

    found: dict[Path, Checked] = {}
    for checked in run_in_crew(partial(_checker, settings, backend), iter(paths), jobs, _lost):
        found[checked.path] = checked
        if progress is not None:
            progress(len(found))
    return [found[path] for path in paths]


def _checker(
    settings: Settings, backend: tuple[str, str, int | None, float | None], threads: int
) -> Callable[[Path], Checked]:
    make = runner_maker(*backend)
    return lambda path: check_model(path, settings.of(path), make)


def _lost(path: Path) -> Checked:
    error = RunError("QR015", f"checking {str(path)!r} crashed its process each time", where=[str(path)])
    return Checked(path, (as_finding(error),))


def _check_peer(backend: str, arith: str) -> None:
    if arith != "exact":
        raise CallError(
            "QR005",
            "--arith is for qrun's own backends; another runtime has its own arithmetic",
            facts=[("got", f"--arith {arith} --backend {backend}")],
            fixes=["omit one of them"],
        )
    if backend == "ort" and find_spec("onnxruntime") is None:
        fixes = ["pip install 'onnx-qrun[ort]'"]
        raise UnsupportedError("QR012", "--backend ort needs onnxruntime, which is not installed", fixes=fixes)
