"""EngineConfig and ServeConfig: defaults, checks, and which source wins."""

from __future__ import annotations

import dataclasses
import inspect
import math
from argparse import ArgumentError
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from litspec.api.config import ConfigError, EngineConfig, ServeConfig
from litspec.api.config_sources import add_config_flags, config_folder, find_config, given_flags, load_config
from litspec.api.llm import LLM


def test_help_shows_a_commands_own_defaults():
    parser = ArgumentParser(exit_on_error=False)
    add_config_flags(parser, EngineConfig, defaults={"max_batch_size": 1})
    text = " ".join(parser.format_help().split())
    assert "each in a slot of the cache (default: 1)" in text
    assert "switches drafting off (default: auto)" in text


def write(folder: Path, text: str) -> Path:
    path = folder / "some.yaml"
    path.write_text(text)
    return path


def parse(*flags: str, cls: type[EngineConfig] = ServeConfig) -> dict[str, Any]:
    parser = ArgumentParser(exit_on_error=False)
    add_config_flags(parser, cls)
    return given_flags(parser.parse_args(list(flags)), cls)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("model", "", "a name"),
        ("model", None, "a name"),
        ("model", 7, "a name"),
        ("draft", "", "ngram"),
        ("draft", "early-exit", "early-exit:N"),
        ("draft", "early-exit:0", "early-exit:N"),
        ("draft", "early-exit:two", "early-exit:N"),
        ("num_draft_tokens", 0, "from 1"),
        ("num_draft_tokens", "4", "from 1"),
        ("num_draft_tokens", True, "from 1"),
        ("num_draft_tokens", 2.0, "from 1"),
        ("max_batch_size", -1, "from 1"),
        ("max_batch_size", None, "from 1"),
        ("num_draft_tokens", 65, "to 64"),
        ("num_draft_tokens", "AUTO", "auto, or an integer from 1 to 64"),
        ("num_draft_tokens", "", "auto"),
        ("num_draft_tokens", None, "auto"),
        ("num_draft_tokens", [4], "auto"),
        ("prefix_reuse", "true", "true or false"),
        ("prefix_reuse", 0, "true or false"),
        ("prefix_reuse", None, "true or false"),
        ("batching", "static", "continuous, fixed"),
        ("batching", True, "continuous, fixed"),
        ("generate_timeout", 0, "above 0"),
        ("generate_timeout", -1, "above 0"),
        ("generate_timeout", math.inf, "above 0"),
        ("generate_timeout", math.nan, "above 0"),
        ("generate_timeout", True, "above 0"),
        ("generate_timeout", "60", "above 0"),
        ("max_batch_size", 1025, "to 1024"),
        ("max_seq_length", 1, "from 2"),
        ("max_seq_length", "null", "from 2"),
        ("dtype", "fp16", "float16"),
        ("dtype", ["float32"], "float32"),
        ("quantize", "int3", "none"),
        ("compile", True, "thunder"),
        ("device", "tpu", "cuda:N"),
        ("device", "cuda:", "cuda:N"),
        ("device", "cpu:0", "cuda:N"),
        ("host", "localhost", "127.0.0.1"),
        ("port", 80, "1024 to 65535"),
        ("port", 65536, "1024 to 65535"),
        ("port", "8000", "1024 to 65535"),
        ("batch_timeout", -0.1, "seconds"),
        ("batch_timeout", math.nan, "seconds"),
        ("batch_timeout", math.inf, "seconds"),
        ("batch_timeout", "1", "seconds"),
        ("timeout", 0, "above 0"),
        ("timeout", False, "above 0"),
        ("timeout", 0.005, "less than timeout"),
        ("workers_per_device", 0, "from 1"),
        ("served_model_name", " ", "a name"),
        ("log_level", "loud", "info"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path: Path, key: str, value: Any, allowed: str):
    with pytest.raises(ConfigError) as raised:
        ServeConfig(**{key: value})
    message = str(raised.value)
    assert allowed in message
    if "less than" not in allowed:
        assert message.startswith(f"{key} was {value!r}; allowed: ")
        assert raised.value.key == key


@pytest.mark.parametrize(
    "values",
    [
        {"draft": None},
        {"draft": "early-exit:3"},
        {"draft": "org/name"},
        {"device": "cuda:1"},
        {"host": "::"},
        {"batch_timeout": 0},
        {"timeout": None},
        {"timeout": 5},
        {"generate_timeout": 0.5},
        {"num_draft_tokens": "auto"},
        {"num_draft_tokens": 1},
        {"prefix_reuse": False},
        {"batching": "fixed"},
        {"max_seq_length": 2},
    ],
)
def test_what_is_allowed_is_kept(values: dict[str, Any]):
    config = ServeConfig(**values)
    assert {name: getattr(config, name) for name in values} == values
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_fields_and_defaults_are_those_of_llm_load():
    parameters = inspect.signature(LLM.load).parameters
    assert set(parameters) == {"model", "tokenizer", *EngineConfig().load_options()}
    assert {name: parameters[name].default for name in EngineConfig().load_options()} == EngineConfig().load_options()


@pytest.mark.parametrize(("draft", "number", "most"), [("ngram", "auto", 7), ("ngram", 3, 3), ("none", 3, 0)])
def test_most_draft_tokens(draft: str, number: Any, most: int):
    assert EngineConfig(draft=draft, num_draft_tokens=number).most_draft_tokens == most


@pytest.mark.parametrize(
    ("draft", "layers", "model"),
    [
        ("early-exit:3", 3, None),
        ("ngram", None, None),
        ("none", None, None),
        (None, None, None),
        ("debug", None, "debug"),
        ("org/name:v2", None, "org/name:v2"),
    ],
)
def test_kinds_of_draft(draft: str | None, layers: int | None, model: str | None):
    settings = EngineConfig(draft=draft)
    assert (settings.early_exit_layers, settings.draft_model) == (layers, model)
    assert settings.is_drafting == (draft not in (None, "none"))


def test_the_name_is_the_models_unless_another_is_given():
    assert ServeConfig(model="org/name").name == "org/name"
    assert ServeConfig(model="org/name", served_model_name="mine").name == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batchsize: 4", "unknown key 'max_batchsize' (in {path}); did you mean max_batch_size?"),
        ("num-draft-tokens: 4", "did you mean num_draft_tokens?"),
        ("drafts: ngram", "did you mean draft?"),
        ("1: 2", "unknown key 1"),
        ("port: 80", "port was 80; allowed: an integer from 1024 to 65535 (in {path})"),
        ("max_batch_size: '8'", "max_batch_size was '8'"),
        ("model: a\nmodel: b", "key 'model' stands twice"),
        ("model: [", "cannot be read as YAML"),
        ("- model", "holds a list; allowed: lines of `key: value`"),
        ("model: !!python/object:os.system x", "cannot be read as YAML"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong_in_it(tmp_path: Path, text: str, words: str):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load_config(path, ServeConfig, environ={})
    assert words.format(path=path) in str(raised.value)


def test_a_file_that_is_no_text_is_a_config_error(tmp_path: Path):
    path = tmp_path / "some.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        load_config(path, ServeConfig)


def test_flag_before_environment_before_file_before_default(tmp_path: Path):
    path = write(tmp_path, "port: 9001\nhost: '0.0.0.0'\n")
    environ = {"LITSPEC_PORT": "9002"}
    assert load_config(None, ServeConfig, environ={}).port == 8000
    assert load_config(path, ServeConfig, environ={}).port == 9001
    assert load_config(path, ServeConfig, environ=environ).port == 9002
    config = load_config(path, ServeConfig, parse("--port", "9003"), environ=environ)
    assert (config.port, config.host) == (9003, "0.0.0.0")
    assert load_config(path, ServeConfig, environ={"LITSPEC_HOST": "::", "LITSPEC_PORT": " "}).host == "::"


@pytest.mark.parametrize("value", ["abc", "80", "-1", "8000.0"])
def test_a_wrong_environment_variable_is_named(value: str):
    with pytest.raises(ConfigError, match=r"port was .*allowed: an integer from 1024 to 65535 \(in \$LITSPEC_PORT\)"):
        load_config(None, ServeConfig, environ={"LITSPEC_PORT": value})


def test_every_field_has_a_flag_that_leaves_a_trace_only_when_given():
    assert parse() == {}
    given = parse("--num-draft-tokens", "6", "--timeout", "null", "--draft", "none", "--served-model-name", "12")
    assert given == {"num_draft_tokens": 6, "timeout": None, "draft": "none", "served_model_name": "12"}
    for item in dataclasses.fields(ServeConfig):
        text = "null" if item.default is None else str(item.default)
        assert parse("--" + item.name.replace("_", "-"), text) == {item.name: item.default}
    assert "port" not in {item.name for item in dataclasses.fields(EngineConfig)}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--num-draft-tokens", "auto"), {"num_draft_tokens": "auto"}),
        (("--num-draft-tokens=12",), {"num_draft_tokens": 12}),
        (("--prefix-reuse", "false"), {"prefix_reuse": False}),
        (("--prefix-reuse=True",), {"prefix_reuse": True}),
        (("--batching", "fixed"), {"batching": "fixed"}),
        (("--generate-timeout", "90"), {"generate_timeout": 90.0}),
        (("--generate-timeout", "null"), {"generate_timeout": None}),
    ],
)
def test_flags_of_more_than_one_type(flags: tuple[str, ...], expected: dict[str, Any]):
    assert parse(*flags) == expected
    assert load_config(None, ServeConfig, parse(*flags), environ={})


@pytest.mark.parametrize(
    "flags",
    [
        ("--num-draft-tokens", "Auto"),
        ("--num-draft-tokens", "4.0"),
        ("--num-draft-tokens", "null"),
        ("--num-draft-tokens", ""),
        ("--num-draft-tokens", "true"),
        ("--prefix-reuse", "1"),
        ("--prefix-reuse", "null"),
        ("--prefix-reuse", "auto"),
        ("--batching", "static"),
        ("--generate-timeout", "soon"),
    ],
)
def test_flags_that_are_neither_are_refused(flags: tuple[str, ...]):
    with pytest.raises(ArgumentError):
        parse(*flags)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("num_draft_tokens: auto", {"num_draft_tokens": "auto"}),
        ("num_draft_tokens: 'auto'", {"num_draft_tokens": "auto"}),
        ("num_draft_tokens: 6", {"num_draft_tokens": 6}),
        ("prefix_reuse: false", {"prefix_reuse": False}),
        ("prefix_reuse: off", {"prefix_reuse": False}),
        ("batching: fixed", {"batching": "fixed"}),
    ],
)
def test_files_hold_them_too(tmp_path: Path, line: str, expected: dict[str, Any]):
    assert load_config(write(tmp_path, line), EngineConfig, environ={}) == EngineConfig(**expected)


def test_one_file_serves_every_command(tmp_path: Path):
    path = write(tmp_path, "model: debug\nport: 9001\n")
    assert load_config(path, EngineConfig, environ={"LITSPEC_PORT": "9002"}) == EngineConfig(model="debug")
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(write(tmp_path, "prot: 9001"), EngineConfig)


def test_an_empty_file_gives_the_defaults(tmp_path: Path):
    assert load_config(write(tmp_path, "# nothing yet\n"), ServeConfig, environ={}) == ServeConfig()


@pytest.mark.parametrize(
    "name",
    ["serve/debug", "serve/debug.yaml", "config_hub/serve/debug.yaml", str(config_folder() / "serve/debug.yaml")],
)
def test_a_config_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    assert find_config(name).resolve() == (config_folder() / "serve/debug.yaml").resolve()


def test_a_file_here_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve" / "debug.yaml").write_text("model: mine")
    assert load_config("serve/debug.yaml", EngineConfig).model == "mine"
    assert load_config("serve/debug", EngineConfig).model == "debug"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("serve/smolm2-135m", "Did you mean serve/smollm2-135m?"),
        ("missing.yaml", "allowed: a YAML file, or one of serve/debug"),
        ("../pyproject.toml", "which is no file"),
        ("/nowhere/some.yaml", "which is no file"),
        ("serve", "which is no file"),
    ],
)
def test_a_config_that_is_not_there_names_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        find_config(name)
    assert words in str(raised.value)
    assert name in str(raised.value)


@pytest.mark.parametrize(
    "line", ['max_batch_size: "four"', "port: true", "timeout: .nan", "compile: false", "prefix_reuse: 1"]
)
def test_a_wrong_value_in_a_file_is_refused_whatever_reads_the_file(line, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(line)
    with pytest.raises(ConfigError, match=f"{line.split(':')[0]} was .*config.yaml"):
        load_config(file, EngineConfig, {"max_batch_size": 1})
