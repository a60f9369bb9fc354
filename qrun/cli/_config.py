"""``[tool.qrun]`` of the nearest pyproject.toml: defaults for options, below the command line and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from qrun.cli._base import COMMANDS, Option, heading
from qrun.errors import CallError, close_matches

general = heading("General")

FORBIDDEN = {
    **dict.fromkeys(
        ("inputs", "output", "trace", "data", "config", "help"),
        "files to read or write can only be named on the command line.",
    ),
    **dict.fromkeys(
        ("metric", "dask", "ops", "functions"), "options that run other code can only be given on the command line."
    ),
}
"""Options that a project file must not set, since a stranger may have written it; and why."""
PER_FILE = ("select", "ignore", "lsb", "rtol", "atol")
"""Options of a command with ``per-file`` that can be set for some models only."""


def _load(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if ctx.resilient_parsing or value == "none":
        return value
    path = Path(value) if value else _nearest()
    if path is None:
        return None
    table = _table(path, required=value is not None)
    if not table:
        return value
    defaults, image = _defaults(ctx, table, path), ["image"] * ("qrun.image" in ctx.meta)
    if defaults or image:
        ctx.default_map = {**(ctx.default_map or {}), **defaults}
        names = ", ".join(sorted(key.replace("_", "-") for key in (*defaults, *image)))
        ctx.meta.setdefault("qrun.notes", []).append(f"{names} from [tool.qrun] in {path}")
    return value


config_option = general(
    "--config FILE",
    "Read this instead of [tool.qrun] in pyproject.toml; 'none' for no file.",
    envvar="QRUN_CONFIG",
    show_envvar=True,
    is_eager=True,
    expose_value=False,
    callback=_load,
)


def _nearest() -> Path | None:
    try:
        folder = Path.cwd()
    except OSError:
        return None
    for parent in (folder, *folder.parents):
        if (parent / "pyproject.toml").is_file():
            return parent / "pyproject.toml"
    return None


def _table(path: Path, required: bool) -> dict[str, Any]:
    import tomllib

    try:
        text = path.read_bytes()
        if not required and b"qrun" not in text:
            return {}
        found = tomllib.loads(text.decode()).get("tool", {}).get("qrun", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError) as error:
        raise CallError(
            "QR009",
            f"cannot read {str(path)!r} as a TOML file",
            where=[str(path)],
            facts=[("got", str(getattr(error, "strerror", None) or error))],
            fixes=["--config none ignores the file"],
        ) from None
    if not isinstance(found, dict):
        raise _unknown("tool.qrun", "a table", ["[tool.qrun]"], path)
    return found


def _defaults(ctx: click.Context, table: dict[str, Any], path: Path) -> dict[str, Any]:
    """The table's settings for options of this command. Raises CallError for a key that is an option of no command."""

    own = _options(ctx)
    command = ctx.info_name or ""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            if key == "image":
                if key in own:
                    ctx.meta["qrun.image"] = _image_words(value, path)
                continue
            if key not in COMMANDS:
                raise _unknown(key, "a table", [*COMMANDS, "image"], path)
            if key != command:
                continue
            for inner, setting in value.items():
                if inner == "per-file" and set(PER_FILE) <= set(own):
                    ctx.meta["qrun.per-file"] = _per_file(ctx, own, setting, path)
                    continue
                if inner not in own:
                    raise _unknown(f"{key}.{inner}", "an option", list(own), path)
                found[own[inner].sets] = _value(ctx, own[inner], f"{key}.{inner}", setting, path)
        elif key in own:
            found.setdefault(own[key].sets, _value(ctx, own[key], key, value, path))
        else:
            raise _unknown(key, "an option", list(own), path)
    return found


def _image_words(table: Mapping[str, Any], path: Path) -> list[str]:
    """The words of ``--image`` that [tool.qrun.image] states, where a list has a number for each channel. Raises
    CallError."""
    from qrun.io.imagesettings import parse_settings

    words = []
    for key, value in table.items():
        parts = value if isinstance(value, list) else [value]
        words.append(f"{key}={','.join(str(part) for part in parts)}")
        try:
            parse_settings(words[-1:])
        except CallError as error:
            what = "a value that --image does not take"
            raise _bad_value(f"image.{key}", what, list(error.facts), path) from None
    return words


def _per_file(ctx: click.Context, own: dict[str, Option], table: Any, path: Path) -> dict[str, dict[str, Any]]:
    """The parameters for models that match a pattern of paths, by pattern; converted as on the command line."""
    found: dict[str, dict[str, Any]] = {}
    for pattern, settings in (table if isinstance(table, dict) else {"": table}).items():
        if not isinstance(settings, dict):
            raise _unknown(
                f"{path.name}.per-file.{pattern}".rstrip("."), "a table", ['"PATTERN" = {ignore = [...]}'], path
            )
        for key, setting in settings.items():
            if key not in PER_FILE:
                raise _unknown(f"per-file.{key}", "an option", list(PER_FILE), path)
            raw = _value(ctx, own[key], f"per-file.{key}", setting, path)
            found.setdefault(pattern, {})[own[key].sets] = own[key].type_cast_value(ctx, raw)
    return found


def _options(ctx: click.Context) -> dict[str, Option]:
    return {
        name[2:]: param
        for param in ctx.command.params
        if isinstance(param, Option)
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--") and name[2:] not in FORBIDDEN
    }


def _value(ctx: click.Context, option: Option, key: str, value: Any, path: Path) -> Any:
    """A TOML value in the form that click takes from a file. Raises CallError if its kind, or the value itself, does
    not fit the option."""
    if option.multiple:
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in items):
            return _usable(ctx, option, key, [str(item) for item in items], path)
    elif option.is_flag:
        if isinstance(value, bool) and isinstance(option.flag_value, str):
            return option.flag_value if value else None
        if isinstance(value, bool):
            return value
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return _usable(ctx, option, key, str(value), path)
    expected = "true or false" if option.is_flag else "a list of strings" if option.multiple else "a string or a number"
    raise _bad_value(key, "a value of the wrong kind", [("expected", expected), ("got", repr(value)[:60])], path)


def _usable(ctx: click.Context, option: Option, key: str, raw: Any, path: Path) -> Any:
    try:
        option.type_cast_value(ctx, raw)
    except click.BadParameter as error:
        raise _bad_value(key, "a value that the option does not take", [("got", error.message)], path) from None
    return raw


def _bad_value(key: str, what: str, facts: list[tuple[str, str]], path: Path) -> CallError:
    fixes = ["--config none ignores the file"]
    return CallError("QR009", f"{key} has {what}", where=[str(path), f"[tool.qrun] {key}"], facts=facts, fixes=fixes)


def _unknown(key: str, what: str, known: list[str], path: Path) -> CallError:
    name = key.rpartition(".")[2]
    near = close_matches(name, known)
    why = FORBIDDEN.get(name, "")
    return CallError(
        "QR009",
        f"[tool.qrun] has {key!r}, which is not {what}",
        where=[str(path), f"[tool.qrun] {key}"],
        facts=[("known", ", ".join(known))],
        why=why,
        fixes=[f"did you mean {near[0]}?"] if near else ["--config none ignores the file"],
    )
