"""Where recorded vectors are: ``test_data_set_*`` folders beside a model, or in folders that a call names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qrun.errors import CallError, absent


def vector_folders(model: Path, data: Sequence[Path] | None) -> list[Path]:
    """The folders to replay: ``test_data_set_*`` beside the model, or those that `data` are or hold.

    Raises CallError for a folder of `data` with no vectors.
    """
    if data is None:
        return _sets(model.parent)
    found = []
    for folder in data:
        why, _ = absent(str(folder))
        sets = [] if why else [folder] if any(folder.glob("*put_*.pb")) else _sets(folder)
        if not sets:
            where = [str(folder)]
            facts = [("expected", "input_0.pb, output_0.pb ..., or folders test_data_set_* with them")]
            fixes = ["--data none checks without vectors"]
            raise CallError(
                "QR004", f"{str(folder)!r} holds no vectors{why and f': {why}'}", where=where, facts=facts, fixes=fixes
            )
        found += sets
    return found


def _sets(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("test_data_set_*") if p.is_dir()), key=lambda p: (len(p.name), p.name))
