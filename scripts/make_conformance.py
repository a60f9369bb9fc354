"""Freeze the conformance suite: python scripts/make_conformance.py [--check | --list]

Every family has a seed of its own. A case is frozen only if the oracles in tests/ and the reference kernels give the
same bits; anything else ends the script. --check says whether the archive in the package has these cases,
byte for byte.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

import _conformance_contrib  # noqa: E402, F401
import _conformance_contrib_blocks  # noqa: E402, F401
import _conformance_contrib_codes  # noqa: E402, F401
import _conformance_contrib_products  # noqa: E402, F401
import _conformance_contrib_sizes  # noqa: E402, F401
import _conformance_conv  # noqa: E402, F401
import _conformance_dequantize  # noqa: E402, F401
import _conformance_floats  # noqa: E402, F401
import _conformance_graphs  # noqa: E402, F401
import _conformance_known  # noqa: E402, F401
import _conformance_law_contrib  # noqa: E402, F401
import _conformance_matmul  # noqa: E402, F401
import _conformance_narrow  # noqa: E402, F401
import _conformance_pools  # noqa: E402, F401
import _conformance_power_cast  # noqa: E402, F401
import _conformance_power_conv  # noqa: E402, F401
import _conformance_power_dequantize  # noqa: E402, F401
import _conformance_power_graphs  # noqa: E402, F401
import _conformance_power_matmul  # noqa: E402, F401
import _conformance_power_quantize  # noqa: E402, F401
import _conformance_quantize  # noqa: E402, F401
import _conformance_rejects  # noqa: E402, F401
from _conformance_case import FAMILIES, drafts, frozen_case  # noqa: E402
from _conformance_changes import changes  # noqa: E402
from _conformance_law import LAW  # noqa: E402

from qrun.conform.suite import ANSWER, ARCHIVE, FORCED, PROFILES, Case, write  # noqa: E402
from qrun.declare import grouped  # noqa: E402


def made(names: list[str] | None = None) -> list[Case]:
    """The cases of these families, or of all, by id."""
    found: dict[str, Case] = {}
    for name in names or FAMILIES:
        for draft in drafts(name):
            assert draft.id not in found, f"{draft.id} twice"
            assert draft.profile in PROFILES, draft.id
            found[draft.id] = frozen_case(draft)
    return mark_mustpass([found[id] for id in sorted(found)])


MUSTPASS_COUNT = 400
"""The number of cases of --select mustpass, which any runtime shall answer within a minute."""


def mark_mustpass(cases: list[Case]) -> list[Case]:
    """Mark the cases that no one can argue with: forced by the text, of ai.onnx, with ordinary numbers.

    They are taken from the families in turn, so that each family has its share.
    """
    families = grouped(
        (case.info.id.rpartition("/")[0], case.info.id)
        for case in cases
        if (case.info.basis, case.info.profile, case.info.expects) == (FORCED, "core", ANSWER)
    )
    turns = (id for turn in zip_longest(*families.values()) for id in turn if id is not None)
    chosen = set(islice(turns, MUSTPASS_COUNT))
    return [replace(case, info=replace(case.info, mustpass=case.info.id in chosen)) for case in cases]


def contents(path: Path) -> dict[str, bytes]:
    """What an archive has, whatever compressed it."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the archive in the package")
    parser.add_argument("--list", action="store_true", help="print the ids instead of writing")
    parser.add_argument("-o", "--output", type=Path, default=ARCHIVE)
    parser.add_argument("families", nargs="*", help="only these, for a look")
    given = parser.parse_args()
    cases = made(given.families)
    if given.list or given.families:
        print(*(case.info.id for case in cases), f"{len(cases)} cases", sep="\n")
        return 0
    target = given.output.with_suffix(".new") if given.check else given.output
    write(target, cases, LAW, changes(cases))
    if given.check:
        same = contents(target) == contents(given.output)
        target.unlink()
        print("the same" if same else "the archive differs from what the script makes")
        return int(not same)
    operators = {(case.info.domain, case.info.op) for case in cases}
    print(f"{target}: {len(cases)} cases of {len(operators)} operators, {target.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
