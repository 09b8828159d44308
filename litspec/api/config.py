"""EngineConfig and ServeConfig: what a YAML file, the environment and the command line may set.

Each is a frozen value that is checked when it is built, so that nothing behind it checks a setting again. One table of
fields serves all three sources: flags are made from it (`add_config_flags`), YAML keys are compared with it, and an
error names the source, what was given, what is allowed, and the nearest key. This module loads no model.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import yaml

DType = Literal["auto", "float64", "float32", "bfloat16", "float16"]
Quantize = Literal["none"]
Compile = Literal["thunder", "none"]
Host = Literal["127.0.0.1", "0.0.0.0", "::"]
LogLevel = Literal["critical", "error", "warning", "info", "debug"]

ENVIRONMENT = {"host": "LITSPEC_HOST", "port": "LITSPEC_PORT"}


class ConfigError(ValueError):
    """A user's configuration cannot be used; `key` names the setting (None where no single one is at fault)."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def about(help: str, *, allowed: str, accepts: Callable[[Any], bool]) -> dict[str, Any]:
    """Return a field's metadata: its help line, what is allowed in words, and the check of a value."""
    return {"help": help, "allowed": allowed, "accepts": accepts}


def one_of(options: Any, help: str) -> dict[str, Any]:
    """Return the metadata of a field whose values are the strings of a Literal."""
    names = get_args(options)
    return about(help, allowed=", ".join(names), accepts=lambda value: value in names)


def count(help: str, *, most: int) -> dict[str, Any]:
    """Return the metadata of a field that counts something, from 1 to `most`."""
    return about(help, allowed=f"an integer from 1 to {most}", accepts=lambda value: _is_int(value, 1, most))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_int(value: Any, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_port(value: Any) -> bool:
    return _is_int(value, 1024, 65535)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value < math.inf


def _is_draft(value: Any) -> bool:
    if value is None or not _is_text(value):
        return value is None
    kind, colon, layers = value.partition(":")
    return kind != "early-exit" or (colon == ":" and layers.isdecimal() and int(layers) >= 1)


def _is_device(value: Any) -> bool:
    kind, colon, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    return (value in ("auto", "cpu", "cuda", "mps")) or (kind == "cuda" and colon == ":" and index.isdecimal())


@dataclass(frozen=True)
class EngineConfig:
    """The settings of `LLM.load`, with its defaults.

    Raises:
        ConfigError: a value is not allowed; the message says which, what was given and what is allowed.
    """

    model: str = field(
        default="smollm2-135m-instruct",
        metadata=about(
            "the target: a name (smollm2-135m-instruct, debug), a hub id (org/name), a folder or a .gguf file",
            allowed="a name, a hub id (org/name), a folder or a .gguf file",
            accepts=_is_text,
        ),
    )
    draft: str | None = field(
        default="ngram",
        metadata=about(
            "what proposes tokens: ngram, early-exit:N (the target's first N layers), none, or a model as in --model",
            allowed="ngram, early-exit:N with N from 1, none, or a model",
            accepts=_is_draft,
        ),
    )
    num_draft_tokens: int = field(
        default=4,
        metadata=count(
            "tokens that the draft proposes in a round, at most; `draft: none` switches drafting off", most=64
        ),
    )
    max_batch_size: int = field(
        default=8, metadata=count("requests that run at once, each in a slot of the cache", most=1024)
    )
    max_seq_length: int | None = field(
        default=None,
        metadata=about(
            "tokens of prompt and answer together; null is 2048, or the model's own context if that is smaller",
            allowed="an integer from 2, or null for 2048 or the model's own context if that is smaller",
            accepts=lambda value: value is None or _is_int(value, 2),
        ),
    )
    dtype: DType = field(
        default="auto",
        metadata=one_of(DType, "number type of weights and cache; auto is bfloat16 where the hardware has it"),
    )
    quantize: Quantize = field(default="none", metadata=one_of(Quantize, "how weights are packed in memory"))
    compile: Compile = field(
        default="thunder", metadata=one_of(Compile, "how the model's blocks run: traced by Thunder, or eagerly (none)")
    )
    device: str = field(
        default="auto",
        metadata=about(
            "where the model runs: auto, cpu, cuda, cuda:N or mps",
            allowed="auto, cpu, cuda, cuda:N, mps",
            accepts=_is_device,
        ),
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not item.metadata["accepts"](value):
                raise ConfigError(f"{item.name} was {value!r}; allowed: {item.metadata['allowed']}", key=item.name)

    def load_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `LLM.load` (without `model`)."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(EngineConfig) if f.name != "model"}


@dataclass(frozen=True)
class ServeConfig(EngineConfig):
    """EngineConfig and what the server adds.

    Raises:
        ConfigError: a value is not allowed; the message says which, what was given and what is allowed.
    """

    host: Host = field(
        default="127.0.0.1", metadata=one_of(Host, "address to listen on; 0.0.0.0 or :: lets other machines in")
    )
    port: int = field(
        default=8000, metadata=about("port to listen on", allowed="an integer from 1024 to 65535", accepts=_is_port)
    )
    batch_timeout: float = field(
        default=0.01,
        metadata=about(
            "seconds that an idle server waits for more requests to start together",
            allowed="a number of seconds from 0 to 60",
            accepts=lambda value: _is_seconds(value) and value <= 60,
        ),
    )
    timeout: float | None = field(
        default=60.0,
        metadata=about(
            "seconds that a request may wait for a slot before it is answered 504; null waits without end. "
            "A request that runs is never cut",
            allowed="a number of seconds above 0, or null for no limit",
            accepts=lambda value: value is None or (_is_seconds(value) and value > 0),
        ),
    )
    workers_per_device: int = field(
        default=1, metadata=count("copies of the model on each device, each in a process of its own", most=64)
    )
    served_model_name: str | None = field(
        default=None,
        metadata=about(
            "the name that clients see; null takes the name in `model`",
            allowed="a name, or null for the name in `model`",
            accepts=lambda value: value is None or _is_text(value),
        ),
    )
    log_level: LogLevel = field(default="info", metadata=one_of(LogLevel, "what is logged"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout is not None and self.batch_timeout >= self.timeout:
            raise ConfigError(
                f"batch_timeout was {self.batch_timeout!r}; allowed: less than timeout, which is {self.timeout!r}",
                key="batch_timeout",
            )

    @property
    def name(self) -> str:
        """The model's name to the outside."""
        return self.served_model_name or self.model


ConfigType = TypeVar("ConfigType", bound=EngineConfig)


def add_config_flags(parser: argparse.ArgumentParser, cls: type[EngineConfig]) -> None:
    """Add `--config` and one flag a field of `cls` (`--num-draft-tokens`) to a jsonargparse parser.

    A flag that the user did not give leaves no trace in the parsed namespace: `given_flags` collects the others.
    """
    parser.add_argument(
        "--config", default=argparse.SUPPRESS, help="a YAML file, or a name under config_hub (serve/smollm2-135m)"
    )
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        default = "null" if item.default is None else item.default
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
    given = Path(name_or_path).expanduser()
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
    sources = [(f" (in {path})", _read_file(path) if path is not None else {})]
    sources += [(f" (in ${variable})", values) for variable, values in _read_environment(environ)]
    sources += [("", dict(overrides or {}))]
    for where, settings in sources:
        _check_keys(settings, where)
        values.update(settings)
        origin.update(dict.fromkeys(settings, where))
    try:
        return cls(**{name: values[name] for name in names if name in values})
    except ConfigError as error:
        raise ConfigError(f"{error}{origin.get(error.key or '', '')}", key=error.key) from None


def _check_keys(settings: Mapping[Any, Any], where: str) -> None:
    known = [item.name for item in dataclasses.fields(ServeConfig)]
    for key in settings:
        if key not in known:
            nearest = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1, cutoff=0.4)
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


def _read_file(path: str | os.PathLike[str]) -> dict[Any, Any]:
    file = find_config(path)
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
