"""The commands by name: where each is declared, and its line of the help."""

from __future__ import annotations

COMMANDS = {
    "run": ("qrun.cli.run:command", "Run a model: outputs, time per node, spec checks."),
    "check": ("qrun.cli.check:command", "Check models against the operator specs; replay test vectors."),
    "profile": ("qrun.cli.profile:command", "Measure time per node over many runs."),
    "compare": ("qrun.cli.compare:command", "Find where two runtimes, models or runs differ, and why."),
    "inspect": ("qrun.cli.inspect:command", "Show inputs, outputs, operators and quantization of a model."),
    "report": ("qrun.cli.report:command", "Write one self-contained HTML page."),
    "ops": ("qrun.cli.ops:command", "List supported operators, versions and types."),
    "explain": ("qrun.cli.explain:command", "Explain a rule, an operator or a topic, offline."),
}
