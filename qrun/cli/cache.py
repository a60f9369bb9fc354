"""``qrun cache``: what is kept on disk, and how to be rid of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrun.cli._base import define, format_options, heading, print_json
from qrun.cli._options import general_options

if TYPE_CHECKING:
    from qrun.report.screen import Out

output, cache = map(heading, ("Output", "Cache"))


@define(
    "cache",
    examples=["qrun cache", "qrun cache --list", "qrun cache --clear", "QRUN_CACHE_SIZE=2GB qrun m.onnx -i x.npy"],
    notes="QRUN_CACHE_DIR names another folder, QRUN_CACHE_SIZE its limit. The files that were not used for the longest time are removed first; what is missing is made again.",
)
@output("-l, --list", "List every file, the most recently used one first.", into="every")
@cache("--clear", "Remove all files, also those that killed processes left behind.")
@format_options("text", "json")
@general_options()
def command(out: Out, every: bool, clear: bool, format: str) -> int:
    """Show, or clear, what is kept on disk of kernels and models."""
    from qrun.native.machine.cache import ObjectCache, default_directory
    from qrun.report.cache import cache_fields, print_cache

    store = ObjectCache(default_directory())
    removed = store.clear() if clear else None
    entries = store.entries()
    if format == "json":
        print_json(out, cache_fields(store, entries, removed), 0)
    else:
        print_cache(out.result, store, entries, removed, every)
    return 0
