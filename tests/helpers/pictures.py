"""Screens as pictures: what terminals of three widths show, with its colours, as SVG.

``cd tests; python -m helpers.pictures`` makes tests/pictures again; look at them before they are committed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from helpers.cli import ROOT, terminal

sys.path.insert(0, str(ROOT / "scripts"))

FOLDER = ROOT / "tests" / "pictures"
WIDTHS = (80, 100, 140)
DIGITS = "models/digits"
COMMANDS = {
    "check-error": "check det.onnx",
    "check-warning": f"check {DIGITS}/qdq",
    "compare-models": f"compare {DIGITS}/float/model.onnx {DIGITS}/qdq/model.onnx -i {DIGITS}/x.npy --top 3",
    "compare-ranked": f"compare {DIGITS}/float/model.onnx {DIGITS}/qdq/model.onnx {DIGITS}/qoperator/model.onnx -i {DIGITS}/x.npy",
    "compare-emulated": f"compare {DIGITS}/qdq/model.onnx -i {DIGITS}/x.npy --emulate avx2 --top 3",
    "explain": "explain QR412",
}
"""Screens without times, and without what depends on the machine."""
_FONTS = re.compile(r"@font-face \{\{.*?\}\}", re.S)


def picture(name: str, width: int) -> str:
    """The SVG of a screen; the current folder has what `screens.fill` makes."""
    shown = terminal(*COMMANDS[name].split(), width=width, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
    console = Console(record=True, width=width, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(shown), soft_wrap=True)
    console.file.close()
    made = console.export_svg(title=f"qrun {COMMANDS[name]}"[: width - 20], code_format=_format(), unique_id="qrun")
    return re.sub(r"[ \t]+$", "", made, flags=re.M)


def _format() -> str:
    """rich's, without fonts from the network, and with the version that made it."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    return _FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Generated with Rich", f"rich {version('rich')}:")


def texts(svg: str) -> list[str]:
    """What stands in a picture, in order."""
    return re.findall(r"<text [^>]*>(.*?)</text>", svg)


def made_with(svg: str) -> str:
    """The version of rich that made a picture."""
    found = re.search(r"rich ([\d.]+):", svg)
    return found[1] if found else ""


def every() -> Iterator[tuple[str, int, Path]]:
    yield from ((name, width, FOLDER / f"{name}-{width}.svg") for name in COMMANDS for width in WIDTHS)


def main() -> None:
    from screens import fill

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        os.chdir(folder)
        for name, width, path in every():
            path.write_text(picture(name, width), encoding="utf-8")


if __name__ == "__main__":
    main()
