"""The report of ``qrun explain``: a rule, a code, an operator or a topic."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches

from qrun.errors import CallError
from qrun.report.codes import CODES, GROUPS, TOPICS
from qrun.report.grid import Column, Grid
from qrun.report.message import STYLES
from qrun.report.ops import Supported, compact, ranges, supported
from qrun.report.screen import Screen
from qrun.rules import RULES, Rule


def explain(screen: Screen, topic: str, verbose: bool = False) -> None:
    """Print what is known of `topic`; CallError with near names if nothing is."""
    word = topic.strip()
    printer = _topic(word) or _rule(word, verbose) or _code(word) or _group(word) or _operator(word)
    if printer is None:
        raise _unknown(word)
    printer(screen)


def print_topics(screen: Screen) -> None:
    """Everything that can be explained: topics, then every code with its name."""
    screen.wrapped("Topics     ", " " * 11, ", ".join(TOPICS))
    screen.wrapped("Operators  ", " " * 11, "any of qrun ops, such as QLinearConv")
    screen.line(("Codes", "bold"))
    _code_table(screen, "QR")


Printer = Callable[[Screen], None]


def _rule(word: str, verbose: bool) -> Printer | None:
    found = next((r for r in RULES.values() if word.lower() in (r.id.lower(), r.name)), None)
    return None if found is None else lambda screen: _print_rule(screen, found, verbose)


def _print_rule(screen: Screen, rule: Rule, verbose: bool) -> None:
    screen.line(
        (f"{rule.id} {rule.name}", "bold"), "   ", (rule.level, STYLES[rule.level]), f"   since qrun {rule.since}"
    )
    before = rule.doc.partition("Why is this bad?")[0]
    _paragraphs(screen, f"{before.strip()}\n\n{rule.sections['Why is this bad?']}")
    operators = dict.fromkeys(op.rpartition("::")[2] for op in rule.applies)
    rows = [("applies to", ", ".join(operators)), ("spec", rule.spec), ("fix", rule.fix),
            ("found by", "qrun run, while the model runs" if rule.runs else "qrun run and qrun.check, without running")]  # fmt: skip
    for label, value in rows:
        if value:
            screen.wrapped(f"  {label:<10}  ", " " * 14, value)
    for heading in ("Bad", "Good") if verbose else ():
        screen.line()
        screen.line(f"  {heading}")
        for line in rule.sections[heading].splitlines():
            screen.line(f"    {line}")
    if not verbose:
        screen.line(f"  example     qrun explain {rule.id} -v")


def _paragraphs(screen: Screen, text: str) -> None:
    for part in text.split("\n\n"):
        screen.wrapped("  ", "  ", " ".join(part.split()))


def _code(word: str) -> Printer | None:
    found = next(((c, name, text) for c, (name, text) in CODES.items() if word.lower() in (c.lower(), name)), None)
    if found is None:
        return None
    code, name, text = found

    def show(screen: Screen) -> None:
        screen.line((f"{code} {name}", "bold"), "   ", ("error", STYLES["error"]))
        _paragraphs(screen, text)

    return show


def _group(word: str) -> Printer | None:
    prefix = word.upper()
    known = [c for c in (*RULES, *CODES) if c.startswith(prefix)]
    if not prefix.startswith("QR") or not known:
        return None
    return lambda screen: _code_table(screen, prefix)


def _code_table(screen: Screen, prefix: str) -> None:
    rows = {c: [c, name, "error", GROUPS[c[:3]]] for c, (name, _) in CODES.items() if c.startswith(prefix)}
    rows |= {r.id: [r.id, r.name, r.level, GROUPS[r.id[:3]]] for r in RULES.values() if r.id.startswith(prefix)}
    columns = [Column("code"), Column("name"), Column("level"), Column("about", shrink=1, optional=1)]
    screen.grid(Grid(columns, [rows[code] for code in sorted(rows)]))


def _topic(word: str) -> Printer | None:
    name = word.lower().replace("_", "-")
    return None if name not in TOPICS else lambda screen: _print_topic(screen, name)


def _print_topic(screen: Screen, name: str) -> None:
    """Paragraphs are wrapped; lines that start with a space stay as they are."""
    for part in TOPICS[name].split("\n\n"):
        if part.startswith(" "):
            for line in part.splitlines():
                screen.line(line)
        else:
            screen.wrapped("", "", " ".join(part.split()))
        if not TOPICS[name].endswith(part):
            screen.line()


def _operator(word: str) -> Printer | None:
    known = supported()
    plain = word.lower().removeprefix("ai.onnx::")
    found = [s for s in known if plain in (s.op.lower(), s.op_type.lower())]
    return None if not found else lambda screen: _print_operators(screen, found)


def _print_operators(screen: Screen, found: list[Supported]) -> None:
    for number, s in enumerate(found):
        if number:
            screen.line()
        _print_operator(screen, s)


def _print_operator(screen: Screen, s: Supported) -> None:
    versions = ", ".join(map(str, s.versions))
    screen.line((s.op, "bold"), f"   version{'s' if len(s.versions) > 1 else ''} {versions}")
    for part in inspect.cleandoc(s.definition.__doc__ or "").split("\n\n"):
        if part.startswith(" "):
            for line in part.splitlines():
                screen.line(f"  {line}")
        else:
            _paragraphs(screen, part)
        screen.line()
    formals = {f.name: f for f in s.definition.formals(s.versions[-1])}
    inputs = [
        [p.name, compact(formals[p.name].types) if p.name in formals else "", "repeats" if p.variadic else "optional" if p.optional else ""]
        for p in s.definition.inputs
    ]  # fmt: skip
    if inputs:
        screen.grid(Grid([Column("input"), Column("types", shrink=1), Column("")], inputs))
    attributes = [[a.name, a.text, _default(s, a.name, a.required)] for a in s.definition.attributes.values()]
    if attributes:
        screen.grid(Grid([Column("attribute"), Column("kind"), Column("default", shrink=1)], attributes))
    if s.rules:
        screen.line(f"  checked by  {ranges(s.rules)}")


def _default(s: Supported, name: str, required: bool) -> str:
    if required:
        return "required"
    parameters = s.definition.signature.parameters
    value = parameters[name if name in parameters else f"{name}_"].default
    if value is None or value == ():
        return "-"
    return str(value)


def _unknown(word: str) -> CallError:
    operators = {s.op_type.lower(): s.op_type for s in supported()}
    names = {
        n.lower(): n
        for n in (*TOPICS, *RULES, *CODES, *(r.name for r in RULES.values()), *(n for n, _ in CODES.values()))
    }
    names |= operators
    near = [names[n] for n in get_close_matches(word.lower(), names, 3, 0.6)]
    fixes = [f"did you mean {' or '.join(near)} ?"] if near else []
    return CallError(
        "QR005",
        "bad-option",
        f"there is nothing to explain about {word!r}",
        facts=[("topics", ", ".join(TOPICS)), ("codes", "QR001 to QR499, or a group such as QR3"),
               ("operators", "those of qrun ops")],
        fixes=[*fixes, "qrun explain lists everything"],
    )  # fmt: skip
