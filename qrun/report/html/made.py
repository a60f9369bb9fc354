"""Makes a page's documents from a live model: findings, codes, a profile, a comparison; and ``qrun.report``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrun.checking.codes import CodeCounter
from qrun.checking.deploy import judge_for, rule_ids, target_findings
from qrun.checking.rules import RULES, Finding, check
from qrun.comparing.accuracy import Accuracy
from qrun.comparing.choices import AGAINST
from qrun.comparing.comparison import Comparison
from qrun.documents.record import Item, encode
from qrun.errors import CallError
from qrun.io.files import replace_file
from qrun.io.inputs import Feeds
from qrun.ir import Array, Model
from qrun.report.accuracyjson import accuracy_fields
from qrun.report.compare import comparison_fields
from qrun.report.html.collect import Document, page_of
from qrun.report.html.page import html
from qrun.report.modelfacts import ModelFacts
from qrun.report.profile import profile_fields
from qrun.report.profilerows import ProfileReport, machine_for
from qrun.report.run import output_records
from qrun.running.session import Session

if TYPE_CHECKING:
    import onnx

    from qrun.checking.targets import DeployTarget


def document(kind: str, fields: Mapping[str, Any]) -> Document:
    """A document with these fields, as if read from a file: live and saved results make pages the same way."""
    return kind, Item(encode(fields), kind)


def observe(
    model: Model, session: Session | None, arrays: Mapping[str, Array], targets: Sequence[DeployTarget] = ()
) -> tuple[list[Document], Sequence[Finding], int]:
    """The findings, also on the values of a run, and the records of the quantized tensors, as documents; the findings;
    and how many rules ran. session: of qrun, None if it cannot run the model. targets: judge the model for these
    too."""
    codes, result = CodeCounter(model), None
    if session is not None:
        for name, array in arrays.items():
            codes.see(name, array)
        result = session.watch(arrays, codes.see, codes.made)
    findings = [*check(model, result), *(f for t in targets for f in target_findings(judge_for(t, model)))]
    rules = [*(id for id, rule in RULES.items() if result or not rule.runs), *rule_ids(targets)]
    checked = {
        "path": model.label,
        "sha256": model.sha256,
        "nodes": len(model.nodes),
        "rules": rules,
        "findings": findings,
    }
    made = [] if result is None else [document("outputs", {"outputs": output_records(result.outputs)})]
    made_by = [(out, node) for node in model.nodes for out in node.outputs]
    edges = [[node.index, reader.index] for out, node in made_by for reader in model.consumers.get(out, ())]
    made.append(document("graph", {"edges": edges}))
    made += [document("check", {"models": [checked]}), document("quantization", {"tensors": codes.records()})]
    return made, findings, len(rules)


def profile_document(report: ProfileReport) -> Document:
    fields, model = profile_fields(report), report.profile.model
    told = replace(fields["model"], bytes=model.size, form=ModelFacts(model).brief)
    return document("profile", {**fields, "model": told})


def compare_document(found: Comparison | Accuracy, feeds: Feeds) -> Document:
    if isinstance(found, Comparison):
        return document("compare", comparison_fields(found, feeds))
    return document("compare", {"kind": "models", **accuracy_fields(found, feeds.sources), "equal": found.equal})


def report(
    model: str | Path | bytes | onnx.ModelProto | Model,
    feeds: Mapping[str, Array],
    output: str | Path | None = None,
    *,
    against: str | None = None,
    runs: int | None = None,
    threads: int | None = None,
    max_memory: int | None = None,
    max_time: float | None = None,
) -> str:
    """Makes one self-contained HTML page of a model, as ``qrun report`` writes it: findings, times, codes; returns its
    text.

    feeds:   arrays by input name, for the runs. output: a file to write, too.
    against: also compare every tensor with another runtime, or with a float model (its path), see `qrun.compare`.
    runs:    timed runs; None for as many as fit in 3 s.
    threads, max_memory, max_time: as for Session.
    Raises QrunError as Session does, and OSError if the file cannot be written.
    """
    if not isinstance(feeds, Mapping):
        raise CallError(
            "QR005",
            "feeds must be a dict",
            facts=[("expected", "a dict of arrays by input name"), ("got", type(feeds).__name__)],
            fixes=["qrun.report(model, {name: array})"],
        )
    session = Session(model, threads=threads, max_memory=max_memory, max_time=max_time)
    documents, _, _ = observe(session.model, session, feeds)
    profile, given = session.profile(feeds, runs=runs), Feeds(dict(feeds))
    machine, threads = machine_for(profile, session.threads), session.threads
    made = ProfileReport(
        profile, given, session.load_ns, session.backend, session.arith, machine=machine, threads=threads
    )
    documents.append(profile_document(made))
    if against:
        from qrun.comparing.compare import compare

        source = model if isinstance(model, (str, Path, bytes)) or hasattr(model, "graph") else session.model
        bounds: dict[str, Any] = {"max_memory": max_memory, "max_time": max_time}
        if against in AGAINST or not os.path.exists(against):
            found: Comparison | Accuracy = compare(source, feeds=feeds, against=against, **bounds)
        else:
            found = compare(against, source, feeds, **bounds)
        documents.append(compare_document(found, given))
    text = html(page_of(documents, [], today()))
    if output is not None:
        with replace_file(str(output)) as stream:
            stream.write(text.encode())
    return text


def today() -> str:
    """The date that a page shows, in UTC: that of SOURCE_DATE_EPOCH if set, else today."""

    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        made = datetime.fromtimestamp(int(given), UTC) if given else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        facts = [("expected", "seconds since 1970"), ("got", given[:40])]
        raise CallError(
            "QR005", "SOURCE_DATE_EPOCH is not a time", facts=facts, fixes=["unset SOURCE_DATE_EPOCH"]
        ) from None
    return made.date().isoformat()
