"""What qrun keeps about operators of ai.onnx is what onnx.defs says."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.defs
import pytest

from qrun.ir import schema as kept
from qrun.ir.schema import ML, OPSETS, STANDARD, onnx_schema, schema, schema_versions, stored_schema

WRITTEN_FOR = Path(kept.__file__).with_name("schemas.txt").read_text("ascii").split("\n")[0]


@pytest.mark.skipif(f"onnx {onnx.__version__}" != WRITTEN_FOR, reason=f"schemas.txt was written for {WRITTEN_FOR}")
def test_every_stored_schema_is_that_of_onnx() -> None:
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    assert len(known) > 210
    for domain, name in known:
        for opset in STANDARD[domain]:
            assert stored_schema(domain, name, opset) == onnx_schema(domain, name, opset), (domain, name, opset)


def test_the_versions_of_an_operator_are_those_that_its_opsets_select() -> None:
    selected = {}
    for name in {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}:
        found = {known.version for opset in OPSETS if (known := schema("", name, opset)) is not None}
        selected[name] = tuple(sorted(found))
        assert schema_versions("", name) == selected[name], name
    assert (selected["Add"], selected["Upsample"]) == ((1, 6, 7, 13, 14), (1, 7, 9))
    assert schema_versions("com.microsoft", "Add") == ()
    assert schema_versions(ML, "LabelEncoder") == (1, 2, 4)
    assert schema_versions(ML, "Add") == ()


def test_unknown_operators_have_none() -> None:
    assert schema("", "Convolve", 21) is None
    assert schema("", "@0", 21) is None
    assert schema("", "onnx 1", 21) is None
    assert schema("com.microsoft", "QLinearAdd", 1) is None
    assert schema("com.example", "Conv", 1) is None
    assert schema("", "Conv", -1) is None
    assert schema("", "Upsample", 10) is None
    assert schema("", "Upsample", 9) is not None
