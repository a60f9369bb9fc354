"""The report of ``qrun explain``: a rule, a code, a cause, an operator, a topic or a word; as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qrun.checking.rules import RULES, Rule
from qrun.errors import CallError
from qrun.report.codes import CODES, GROUPS, TOPICS, nearest
from qrun.report.glossary import GLOSSARY
from qrun.report.grid import Column, Grid
from qrun.report.page import Page
from qrun.report.screen import NAME, STYLES, Screen

if TYPE_CHECKING:
    from qrun.comparing.causes import Cause


def page(topic: str | None, verbose: bool = False) -> Page:
    """The page of a topic; of all topics if None. Raises CallError with similar names if there is no such page."""
    if topic is None:
        return Page(_print_topics, {"topics": list(TOPICS), "codes": _code_fields("QR")})
    word = topic.strip()
    found = (
        _topic(word)
        or _term(word)
        or _cause(word)
        or _code(word)
        or _rule(word, verbose)
        or _group(word)
        or _operator(word)
        or _target(word)
    )
    if found is None:
        raise _unknown(word)
    return found


def names() -> list[str]:
    """Everything that has a page: topics, words, codes, names of codes, causes, operators."""
    from qrun.report.ops import supported_operators

    pairs = [*((r.id, r.name) for r in RULES.values()), *((code, name) for code, (name, _) in CODES.items())]
    operators = dict.fromkeys(s.op_type for s in supported_operators())
    codes, names = sorted(code for code, _ in pairs), [name for _, name in sorted(pairs)]
    return list(dict.fromkeys([*TOPICS, *GLOSSARY, *GROUPS, *codes, *names, *causes(), *_target_names(), *operators]))


def _print_topics(screen: Screen) -> None:
    """Prints everything that has a page: topics, then every code with its name."""
    screen.wrapped("Topics     ", " " * 11, ", ".join(TOPICS))
    screen.wrapped("Words      ", " " * 11, ", ".join(GLOSSARY))
    screen.wrapped("Causes     ", " " * 11, ", ".join(causes()))
    screen.wrapped("Operators  ", " " * 11, "any operator that qrun ops lists, such as QLinearConv")
    screen.wrapped("Targets    ", " " * 11, ", ".join(_target_names()))
    screen.line(("Codes", "bold"))
    _code_table(screen, "QR")


def _rule(word: str, verbose: bool) -> Page | None:
    found = RULES.get(word.upper()) or next((r for r in RULES.values() if word.lower() == r.name), None)
    if found is None:
        return None
    sections = found.sections
    fields = {
        "code": found.id,
        "name": found.name,
        "level": found.level,
        "stops": found.stops or found.level == "error",
        "since": found.since,
        "summary": found.summary,
        "why": " ".join(sections["Why is this bad?"].split()),
        "applies": list(found.applies),
        "spec": found.spec,
        "fix": found.fix,
        "bad": sections["Bad"],
        "good": sections["Good"],
    }
    return Page(lambda screen: _print_rule(screen, found, verbose), fields)


def _print_rule(screen: Screen, rule: Rule, verbose: bool) -> None:
    level = f"{rule.level} in qrun check, error in qrun run" if rule.stops and rule.level != "error" else rule.level
    screen.line((f"{rule.id} {rule.name}", "bold"), "   ", (level, STYLES[rule.level]), f"   since qrun {rule.since}")
    before = rule.doc.partition("Why is this bad?")[0]
    _paragraphs(screen, f"{before.strip()}\n\n{rule.sections['Why is this bad?']}")
    rows = [
        ("applies to", ", ".join(rule.applies)),
        ("spec", rule.spec),
        ("fix", rule.fix),
        ("found by", "qrun run, and qrun check with vectors" if rule.runs else "qrun check, without running; qrun run"),
        ("silence", f"qrun check --ignore {rule.id}, or [tool.qrun.check] ignore"),
    ]
    screen.facts(rows)
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


def _code(word: str) -> Page | None:
    found = next(((c, name, text) for c, (name, text) in CODES.items() if word.lower() in (c.lower(), name)), None)
    if found is None:
        return None
    code, name, text = found

    def show(screen: Screen) -> None:
        screen.line((f"{code} {name}", "bold"), "   ", ("error", STYLES["error"]))
        _paragraphs(screen, text)

    return Page(show, {"code": code, "name": name, "level": "error", "summary": text})


def _group(word: str) -> Page | None:
    prefix = word.upper()
    if not prefix.startswith("QR") or not _code_fields(prefix):
        return None

    def show(screen: Screen) -> None:
        if prefix in GROUPS:
            screen.line((prefix, "bold"), f"   {GROUPS[prefix]}")
        _code_table(screen, prefix)

    return Page(show, {"codes": _code_fields(prefix)})


def _code_fields(prefix: str) -> list[dict[str, str]]:
    """Code, name, level and summary of all codes that start with `prefix`."""
    found = [(c, name, "error", text) for c, (name, text) in CODES.items()]
    found += [(r.id, r.name, r.level, r.summary) for r in RULES.values()]
    return [
        {"code": code, "name": name, "level": level, "summary": f"{text.partition('. ')[0].rstrip('.')}."}
        for code, name, level, text in sorted(found)
        if code.startswith(prefix)
    ]


def _code_table(screen: Screen, prefix: str) -> None:
    columns = [Column("code"), Column("name"), Column("level"), Column("about", wrap=True, below=True)]
    stops = {r.id: f"{r.level}, error" for r in RULES.values() if r.stops and r.level != "error"}
    rows = [[r["code"], r["name"], stops.get(r["code"], r["level"]), r["summary"]] for r in _code_fields(prefix)]
    screen.grid(Grid(columns, rows))


def _topic(word: str) -> Page | None:
    name = word.lower().replace("_", "-")
    if name not in TOPICS:
        return None
    if name == "causes":
        return _causes()
    if name == "arithmetics":
        return _arithmetics()
    if name == "glossary":
        return _glossary()
    return Page(lambda screen: screen.paragraphs(TOPICS[name]), {"topic": name, "text": TOPICS[name]})


def _term(word: str) -> Page | None:
    """The page of a word of the glossary, below that of a cause with the same name."""
    name = word.lower()
    if name not in GLOSSARY:
        return None
    cause = _cause(name)

    def show(screen: Screen) -> None:
        if cause is not None:
            cause.show(screen)
            screen.line()
        screen.line((name, "bold"), "   word of the glossary")
        screen.wrapped("  ", "  ", GLOSSARY[name])

    return Page(show, {**(cause.fields if cause else {}), "term": name, "text": GLOSSARY[name]})


def _glossary() -> Page:
    """The page that lists every word below the topic's text."""

    def show(screen: Screen) -> None:
        screen.paragraphs(TOPICS["glossary"])
        screen.line()
        _definitions(screen, GLOSSARY)

    terms = [{"term": name, "text": text} for name, text in GLOSSARY.items()]
    return Page(show, {"topic": "glossary", "text": TOPICS["glossary"], "terms": terms})


def _definitions(screen: Screen, texts: Mapping[str, str]) -> None:
    """Prints each name with its text beside it."""
    width = max(map(len, texts)) + 4
    for name, text in texts.items():
        screen.wrapped(f"  {name}".ljust(width), " " * width, text)


def causes() -> Mapping[str, Cause]:
    """Every cause by name; the modules are imported only when this is called."""
    from qrun.comparing.causes import all_causes
    from qrun.conform.judge import CAUSES

    return dict(sorted({**all_causes(), **CAUSES}.items()))


def _causes() -> Page:
    """The page that lists every cause below the topic's text."""
    known = causes()

    def show(screen: Screen) -> None:
        screen.paragraphs(TOPICS["causes"])
        screen.line()
        _definitions(screen, {name: cause.summary for name, cause in known.items()})

    from qrun.documents.record import encode

    fields = [{"name": name, **encode(cause)} for name, cause in known.items()]
    return Page(show, {"topic": "causes", "text": TOPICS["causes"], "causes": fields})


def _arithmetics() -> Page:
    """The page that lists every family of arithmetics below the topic's text: its five choices, and who uses it; then
    the engines whose elementwise operators are known."""
    from qrun.arithmetics import ENGINES, FAMILIES
    from qrun.arithmetics.family import describe_choices
    from qrun.documents.record import encode

    def show(screen: Screen) -> None:
        screen.paragraphs(TOPICS["arithmetics"])
        for row in FAMILIES.values():
            screen.line()
            screen.line("  ", (row.name, NAME))
            for label, text in (*describe_choices(row), ("used by", row.users), ("source", row.source)):
                screen.wrapped(f"    {label:<12}", " " * 16, text)
        screen.line()
        screen.paragraphs(_ELEMENTWISE)
        for engine in engines:
            screen.line()
            screen.line("  ", (engine.name, NAME))
            for label, text in (
                ("sums", engine.family.name),
                *engine.texts,
                ("used by", engine.users),
                ("source", "; ".join(engine.sources)),
            ):
                screen.wrapped(f"    {label:<20}", " " * 24, text)

    engines = [engine for engine in ENGINES.values() if engine.texts]
    fields = [encode(row) for row in FAMILIES.values()]
    others = [
        {"name": e.name, "sums": e.family.name, "operators": dict(e.texts), "users": e.users, "sources": e.sources}
        for e in engines
    ]
    text = {"topic": "arithmetics", "text": TOPICS["arithmetics"]}
    return Page(show, {**text, "arithmetics": fields, "engines": others})


_ELEMENTWISE = """\
Operators without sums of products differ as well. The names of both lists are values of --arith; what an engine does not
define is computed exactly:"""


def _cause(word: str) -> Page | None:
    """The page of a cause. Codes begin with QR, causes do not, so for a code the causes are not even imported."""
    cause = None if word.upper().startswith("QR") else causes().get(word.lower())
    if cause is None:
        return None
    from qrun.documents.record import encode

    also = next((r.id for r in RULES.values() if r.name == cause.name), "")
    return Page(lambda screen: _print_cause(screen, cause, also), {**encode(cause), "rule": also or None})


def _print_cause(screen: Screen, cause: Cause, also: str) -> None:
    """Prints a cause. also: the code of a rule with the same name, "" if there is none."""
    from qrun.conform.judge import CAUSES

    of = "a verdict of qrun conform" if cause.name in CAUSES else "a difference in qrun compare"
    screen.line((cause.name, "bold"), f"   cause of {of}")
    screen.wrapped("  ", "  ", cause.summary)
    rows = [
        ("confirm", cause.confirm),
        ("what to do", cause.remedy),
        ("source", cause.source),
        ("see also", f"qrun explain {also}, the rule of the same name" if also else ""),
    ]
    screen.facts(rows)


def _operator(word: str) -> Page | None:
    from qrun.report.ops import ops_fields, print_operators, supported_operators

    plain = word.lower().removeprefix("ai.onnx::")
    found = [s for s in supported_operators() if plain in (s.op.lower(), s.op_type.lower())]
    if not found:
        return None
    fields = {**ops_fields(found, len(found)), "text": {s.op: s.text for s in found}}
    return Page(lambda screen: print_operators(screen, found), fields)


def _target(word: str) -> Page | None:
    """The page of a target or of one of its rules; the modules about targets are imported only when this is called."""
    from qrun.report.explaintargets import target_page

    return target_page(word)


def _target_names() -> tuple[str, ...]:
    from qrun.checking.targets import names

    return names()


def _unknown(word: str) -> CallError:
    near = nearest(word, names(), 3)
    codes = sorted((*RULES, *CODES))
    facts = [
        ("topics", ", ".join(TOPICS)),
        ("words", "see qrun explain glossary"),
        ("causes", "see qrun explain causes"),
        ("codes", f"{codes[0]} to {codes[-1]}, or a group such as QR3"),
        ("operators", "see qrun ops"),
        ("targets", ", ".join(_target_names())),
    ]
    fixes = [*([f"did you mean {' or '.join(near)}?"] if near else []), "qrun explain lists everything"]
    return CallError("QR005", f"unknown topic {word!r}", facts=facts, fixes=fixes)
