"""Plant defects in qrun's source, one at a time, and count those that the tests notice.

    pip install pytest-cov
    python scripts/mutants.py [--count 200] [--seed 0] [--jobs 2] [--map FILE] [--full]

A defect changes one expression or statement of a function: `<` becomes `<=`, `and` becomes `or`, a whole number grows
by one, a call whose result nobody reads is left out. Functions are drawn with the seed, one defect for each. The tests
are those that run without --all, and of these the ones that execute the changed line: a first run with coverage, which
takes about 15 minutes, writes which ones into FILE. A defect that no such test notices has survived; with --full the
other tests try, too. A test run that takes far longer than before counts as noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
FIRST = 30
"""Tests that try a defect before all others that execute its line."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A changed part of a file: the text from byte `start` to byte `end` becomes `after`."""

    path: str
    function: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {shorten(self.before)} -> {shorten(self.after)}"


@dataclass(frozen=True)
class CoverageMap:
    """tests: the tests that execute each line, by path and line. seconds: how long each test takes."""

    tests: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that execute the line of a mutant, one case of each function first, the fastest first."""
        cases = defaultdict(list)
        for test in self.tests.get(mutant.path, {}).get(str(mutant.line), ()):
            cases[test.partition("[")[0]].append(test)
        ordered = [sorted(tests, key=lambda t: self.seconds.get(t, 0.0)) for tests in cases.values()]
        firsts = sorted((tests[0] for tests in ordered), key=lambda t: self.seconds.get(t, 0.0))
        return firsts + [test for tests in ordered for test in tests[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--map", type=Path, metavar="FILE", help="read which tests execute which line, or write it")
    parser.add_argument("--full", action="store_true", help="try survivors with all tests of the default tier")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qrun-mutants-") as scratch:
        clones = SimpleQueue[Path]()
        for number in range(options.jobs):
            clones.put(clone(Path(scratch) / str(number)))
        covered = read_map(options.map, clones, options.jobs)
        mutants = draw(options.count, random.Random(options.seed), Path(scratch) / "0")

        def judge(mutant: Mutant) -> bool:
            where = clones.get()
            try:
                killer = try_mutant(mutant, where, covered, options.full)
            finally:
                clones.put(where)
            print(f"{'noticed ' if killer else 'SURVIVED'} {mutant}   {killer}", flush=True)
            return bool(killer)

        with ThreadPoolExecutor(options.jobs) as pool:
            noticed = sum(pool.map(judge, mutants))
    print(f"seed {options.seed}: {noticed} of {len(mutants)} noticed")
    return 0


def clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def read_map(file: Path | None, clones: SimpleQueue[Path], jobs: int) -> CoverageMap:
    if file is not None and file.exists():
        return CoverageMap(**json.loads(file.read_text()))
    from coverage import CoverageData

    where = clones.get()
    words = ["-n", str(jobs), "--cov=qrun", "--cov-context=test", "--cov-report=", "--junitxml=junit.xml"]
    run_tests(where, [*words, "-W", "ignore::coverage.exceptions.CoverageWarning"], None)
    data = CoverageData(str(where / ".coverage"))
    data.read()
    tests = {
        str(Path(name).relative_to(where)): {
            str(line): sorted({context.rpartition("|")[0] for context in contexts} - {""})
            for line, contexts in data.contexts_by_lineno(name).items()
        }
        for name in data.measured_files()
    }
    found = CoverageMap(tests, dict(_junit_seconds(where / "junit.xml")))
    clones.put(where)
    if file is not None:
        file.write_text(json.dumps(vars(found)))
    return found


def _junit_seconds(path: Path) -> Iterator[tuple[str, float]]:
    for case in ElementTree.parse(path).iter("testcase"):
        yield f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}", float(case.get("time", 0))


def draw(count: int, random: random.Random, root: Path) -> list[Mutant]:
    """One mutant for each of `count` functions of a clone."""
    paths = subprocess.run(["git", "ls-files", "qrun/*.py"], cwd=root, check=True, capture_output=True, text=True)
    functions = [found for path in paths.stdout.split() for found in mutants_in(path, (root / path).read_bytes())]
    return [random.choice(found) for found in random.sample(functions, count)]


def mutants_in(path: str, source: bytes) -> list[list[Mutant]]:
    """All mutants of each function in a file that has any."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            mutants = []
            for node, changed in changes(function.body):
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[operator]
                after = ast.unparse(changed)
                after = f"({after})" if isinstance(changed, ast.expr) else after
                before = source[start:end].decode()
                mutants.append(Mutant(path, function.name, node.lineno, start, end, before, after))
            found += [mutants] if mutants else []
    return found


def changes(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Every expression or statement that can change, and what becomes of it; not in functions inside, nor in f-strings,
    whose parts have no places before Python 3.12."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.JoinedStr, ast.Lambda, ast.Raise, ast.Assert)):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of zip: it only finds defects
        match node:
            case ast.Compare(left, [op], right) if type(op) in SWAPS:
                yield node, ast.Compare(left, [SWAPS[type(op)]()], right)  # type: ignore[list-item]
            case ast.BoolOp(op, values):
                yield node, ast.BoolOp(SWAPS[type(op)](), values)  # type: ignore[arg-type]
            case ast.BinOp(left, op, right) if type(op) in SWAPS:
                yield node, ast.BinOp(left, SWAPS[type(op)](), right)  # type: ignore[arg-type]
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield node, operand
            case ast.IfExp(test, body, orelse):
                yield node, ast.IfExp(test, orelse, body)
            case ast.Constant(bool(value)):
                yield node, ast.Constant(not value)
            case ast.Constant(int(value)):
                yield node, ast.Constant(value + 1)
            case ast.Expr(ast.Call()):
                yield node, ast.Pass()
        yield from changes([child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.arguments)])


def try_mutant(mutant: Mutant, where: Path, covered: CoverageMap, full: bool) -> str:
    """The first test that notices a mutant; "" if none does."""
    file = where / mutant.path
    source = file.read_bytes()
    file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    try:
        tests = covered.of(mutant)
        groups = [tests[:FIRST], tests[FIRST:]]
        for group in groups:
            if group:
                killer = run_tests(
                    where, ["-x", *group], 60 + 10 * sum(covered.seconds.get(test, 0.0) for test in group)
                )
                if killer:
                    return killer
        return run_tests(where, ["-x"], 3600) if full else ""
    finally:
        file.write_bytes(source)


def run_tests(where: Path, words: Sequence[str], seconds: float | None) -> str:
    """Run tests in a clone. The first that fails, "" for none, "a timeout" if they take longer than `seconds`."""
    arguments = where / "arguments.txt"
    arguments.write_text("\n".join(words))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", f"@{arguments}"]
    environment = os.environ | {"PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "a timeout"
    if done.returncode == 0:
        return ""
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"exit code {done.returncode}"


def shorten(text: str) -> str:
    """A text in one line of at most 60 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


if __name__ == "__main__":
    sys.exit(main())
