"""Where settings come from: flags, the environment, a YAML file, in this order of precedence, and the defaults below.

One table, the fields of ServeConfig, serves all of them: flags are made from it, YAML keys are compared with it, and an
error names the source, what was given, what is allowed, and the nearest key. Values check themselves (`config.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from litspec.api.config import ConfigError, EngineConfig, ServeConfig
from litspec.paths import expanded

ENVIRONMENT = {"host": "LITSPEC_HOST", "port": "LITSPEC_PORT"}

ConfigType = TypeVar("ConfigType", bound=EngineConfig)


def add_config_flags(
    parser: argparse.ArgumentParser, cls: type[EngineConfig], *, defaults: Mapping[str, Any] | None = None
) -> None:
    """Add `--config` and one flag a field of `cls` (`--num-draft-tokens`) to a jsonargparse parser.

    A flag that the user did not give leaves no trace in the parsed namespace: `given_flags` collects the others.

    Args:
        parser: the parser.
        cls: whose fields become flags.
        defaults: a command's own defaults, which its help shows in place of the fields'.
    """
    parser.add_argument(
        "--config", default=argparse.SUPPRESS, help="a YAML file, or a name under config_hub (serve/smollm2-135m)"
    )
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        default = (defaults or {}).get(item.name, item.default)
        default = "null" if default is None else default
        variable = f", ${ENVIRONMENT[item.name]}" if item.name in ENVIRONMENT else ""
        parser.add_argument(
            "--" + item.name.replace("_", "-"),
            type=hints[item.name],
            default=argparse.SUPPRESS,
            help=f"{item.metadata['help']} (default: {default}{variable})",
        )


def given_flags(namespace: Any, cls: type[EngineConfig]) -> dict[str, Any]:
    """Return the settings of `cls` that were given on the command line."""
    values = vars(namespace)
    return {item.name: values[item.name] for item in dataclasses.fields(cls) if item.name in values}


def config_folder() -> Path:
    """Return config_hub: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "config_hub"
    return inside if inside.is_dir() else package.parent / "config_hub"


def find_config(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file that `--config` means: a path, or a name under config_hub with or without `.yaml`.

    Raises:
        ConfigError: there is no such file; names the nearest one.
    """
    given = expanded(name_or_path)
    if given.is_file():
        return given
    hub = config_folder()
    # A path into the checkout (config_hub/serve/…) means the same file from any folder.
    name = given.relative_to("config_hub") if given.parts[:1] == ("config_hub",) else given
    if not given.is_absolute():
        for candidate in (hub / name, hub / f"{name}.yaml"):
            if candidate.is_file() and hub in candidate.resolve().parents:
                return candidate
    names = sorted(p.relative_to(hub).with_suffix("").as_posix() for p in hub.rglob("*.yaml"))
    nearest = difflib.get_close_matches(name.with_suffix("").as_posix(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(
        f"config was {str(name_or_path)!r}, which is no file; allowed: a YAML file, or one of {', '.join(names)}.{hint}"
    )


def load_config(
    path: str | os.PathLike[str] | None,
    cls: type[ConfigType],
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> ConfigType:
    """Build a `cls` from a file, the environment and overrides.

    A later source wins: default, file, environment (LITSPEC_HOST, LITSPEC_PORT), `overrides` (the flags). A file may
    hold any of ServeConfig's keys, so that one file serves every command; those that `cls` lacks are left out.

    Args:
        path: as `find_config` takes it; None for no file.
        environ: the environment; os.environ by default.

    Raises:
        ConfigError: the file is missing or no YAML mapping, a key is unknown (the nearest is named), or a value is
            not allowed.
    """
    names = [item.name for item in dataclasses.fields(cls)]
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    sources = [(f" (in {path})", read_mapping(find_config(path)) if path is not None else {})]
    sources += [(f" (in ${variable})", values) for variable, values in _read_environment(environ)]
    sources += [("", dict(overrides or {}))]
    for where, settings in sources:
        check_keys(settings, [item.name for item in dataclasses.fields(ServeConfig)], where)
        _check_values(settings, where)  # also what `cls` lacks, or what a later source replaces
        values.update(settings)
        origin.update(dict.fromkeys(settings, where))
    try:
        return cls(**{name: values[name] for name in names if name in values})
    except ConfigError as error:
        raise ConfigError(f"{error}{origin.get(error.key or '', '')}", key=error.key) from None


def _check_values(settings: Mapping[str, Any], where: str) -> None:
    try:
        ServeConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{error}{where}", key=error.key) from None


def check_keys(settings: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    """Raise ConfigError for a key that is not among those known; it names the nearest that is."""
    for key in settings:
        if key not in known:
            nearest = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1, cutoff=0.6)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise ConfigError(f"unknown key {key!r}{where}; {hint}allowed: {', '.join(known)}", key=str(key))


def _read_environment(environ: Mapping[str, str] | None) -> list[tuple[str, dict[str, Any]]]:
    environ = os.environ if environ is None else environ
    found: list[tuple[str, dict[str, Any]]] = []
    for name, variable in ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if text:
            found.append((variable, {name: int(text) if name == "port" and text.isdecimal() else text}))
    return found


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (YAML forbids it, PyYAML keeps the last in silence)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"key {key!r} stands twice; allowed: each key once", key=str(key))
        return super().construct_mapping(node, deep)


def read_mapping(file: Path) -> dict[Any, Any]:
    """Return the keys and values of a YAML file; an empty file has none.

    Raises:
        ConfigError: the file cannot be read, is no mapping, or holds a key twice.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except ConfigError as error:
        raise ConfigError(f"{error} (in {file})", key=error.key) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read as YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} holds a {type(content).__name__}; allowed: lines of `key: value`")
    return content
