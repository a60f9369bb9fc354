"""Declarations are found by the name that stands in quotes in their module."""

from __future__ import annotations

import inspect
import py_compile
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from qrun.checking.rules import RULES
from qrun.declare import Later
from qrun.declare.registry import Registry, sources
from qrun.native.emit.kernel import emitters
from qrun.ops import REGISTRY
from qrun.ops._op import INTERNAL

MODULES = {
    "fruit": 'from basket import KNOWN\nKNOWN.declared["apple"] = 1\nKNOWN.declared["pear"] = 2\n',
    "root": 'from basket import KNOWN\nKNOWN.declared["beet"] = 3\n',
    "_hidden": 'raise ImportError("beet")\n',
}


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[str, int]]:
    folder = tmp_path / "basket"
    folder.mkdir()
    (folder / "__init__.py").write_text('from qrun.declare.registry import Registry\nKNOWN = Registry("basket")\n')
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    sources.cache_clear()
    yield import_module("basket").KNOWN
    for name in [name for name in sys.modules if name.partition(".")[0] == "basket"]:
        del sys.modules[name]
    sources.cache_clear()


def imported() -> set[str]:
    return {name.partition(".")[2] for name in sys.modules if name.startswith("basket.")}


def test_imports_what_is_asked_for(known: Registry[str, int]) -> None:
    assert known.get("plum") is None
    assert imported() == set()
    assert known["pear"] == 2
    assert imported() == {"fruit"}
    assert "bee" not in known
    assert imported() == {"fruit"}


def test_lists_everything_in_order(known: Registry[str, int]) -> None:
    assert known["beet"] == 3
    assert list(known) == ["apple", "beet", "pear"]
    assert len(known) == 3


def test_imports_all_where_there_is_no_source(known: Registry[str, int], tmp_path: Path) -> None:
    for name in MODULES:
        source = tmp_path / "basket" / f"{name}.py"
        py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
        source.unlink()
    invalidate_caches()
    assert known["beet"] == 3
    assert imported() == {"fruit", "root"}


def test_every_emitter_is_found_by_the_kind_of_its_kernels() -> None:
    read = sources("qrun.native.emit")
    lost = {kind for kind, emitter in emitters().items() if f'"{kind}"'.encode() not in read[emitter.__module__]}
    assert (len(emitters()) > 30, lost) == (True, set())


def test_every_operator_and_rule_is_found_by_its_name() -> None:
    operators = {**REGISTRY, **INTERNAL}
    homes = [(d.op_type, d.reference) for found in operators.values() for d in found]
    homes += [(rule.id, rule.function) for rule in RULES.values()]
    read = {**sources("qrun.ops"), **sources("qrun.checking.rules")}
    lost = set()
    for name, function in homes:
        home = inspect.getmodule(function).__name__  # type: ignore[union-attr]
        made = home.endswith("._elementwise")  # then a public module calls what declares it there
        where = [s for s in read.values() if b"= binary_operator(" in s] if made else [read[home]]
        if not any(f'"{name}"'.encode() in source for source in where):
            lost.add(name)
    assert len(homes) > 200
    assert lost == set(), "write the name in quotes in the module that declares it"


def test_a_module_is_imported_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fruits_of_later.py").write_text("APPLE = 'ripe'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fruits = Later("fruits_of_later")
    assert "fruits_of_later" not in sys.modules
    assert fruits.APPLE == "ripe"
    assert "fruits_of_later" in sys.modules
    with pytest.raises(AttributeError, match="PEAR"):
        _ = fruits.PEAR
    del sys.modules["fruits_of_later"]
