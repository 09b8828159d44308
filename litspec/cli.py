"""The `litspec` command: serve, generate, chat, bench, download.

A thin shell: flags become an EngineConfig or ServeConfig and SamplingParams, which check themselves, and the work is
done by `LLM`, `serve` and `bench`. Nothing heavy is imported before a command needs it. A user's mistake is one message
and exit code 2 (`python -X dev -m litspec …` shows where it was raised), Ctrl-C is 130, a closed pipe 141; a server
that runs and is asked to stop ends with 0.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from argparse import SUPPRESS, ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, get_origin

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

    from litspec.api.config_sources import ConfigType
    from litspec.api.llm import LLM, Chunk
    from litspec.engine.params import SamplingParams

EXIT_FAILED = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# One flag for each field of SamplingParams that concerns one answer; it holds the defaults and the checks.
SAMPLING_FLAGS: dict[str, tuple[Any, str]] = {
    "max_new_tokens": (int, "generate at most so many tokens (default: 256)"),
    "temperature": (float, "0 is greedy, up to 2 (default: 1.0)"),
    "top_k": (int, "keep the k highest scores (default: all)"),
    "top_p": (float, "keep the highest scores whose probability reaches this, above 0 up to 1 (default: 1.0)"),
    "min_p": (float, "keep tokens at least this share as probable as the best, 0 to 1 (default: 0)"),
    "repetition_penalty": (float, "above 1 makes what prompt or answer have less likely (default: 1.0)"),
    "presence_penalty": (float, "taken from the score of what the answer has, -2 to 2 (default: 0)"),
    "frequency_penalty": (float, "likewise, as often as the answer has it (default: 0)"),
    "logit_bias": (list[str], "ID=NUMBER adds a number from -100 to 100 to a token's score; repeatable"),
    "bad_words": (list[str], "a text that the answer shall not spell; repeatable"),
    "min_tokens": (int, "do not end before so many tokens (default: 0)"),
    "seed": (int, "the same seed gives the same text, whatever the draft (default: a random one)"),
    "stop": (list[str], "end the text before this string; may be given up to 16 times"),
    "stop_token_ids": (list[int], "a token that ends the text; repeatable"),
    "include_stop_str_in_output": (bool, "the text ends with what stopped it"),
    "ignore_eos": (bool, "go on after an end-of-text token"),
    "logprobs": (int, "log-probabilities of the tokens and of so many of the best, 0 to 20; shown by --json"),
    "prompt_logprobs": (int, "likewise for the prompt"),
}
SAMPLING_NOTE = "A default that the model's own generation_config overrides is the model's."
# One flag for each field of BenchOptions, which holds the defaults and the checks.
BENCH_FLAGS: dict[str, tuple[str, type, str]] = {
    "scenario": ("scenario", str, "decode, one stream (default), or load, many requests at once"),
    "repeats": ("repeats", int, "runs of every prompt or arm (default: 3 for decode, the workload's for load)"),
    "max_new_tokens": ("max-new-tokens", int, "at most so many in an answer (default: 64, or the workload's)"),
    "workload_file": ("workload", str, "load: a YAML file with keys of litspec/bench/load.yaml"),
    "concurrency": ("concurrency", str, "load: requests to keep in flight, as in 1,4,16 (default: the workload's)"),
    "json_file": ("json", str, "write the figures to this file; - is standard output"),
    "plot_file": ("plot", str, "draw the figures into this PNG (pip: litspec[bench])"),
}
ONE_REQUEST = {"max_batch_size": 1}  # what generate and chat make room for
TYPE_NAMES = {"int": "an integer", "float": "a number", "bool": "true or false"}


class UsageError(ValueError):
    """The command line itself is not understood."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own) and return its exit code."""
    try:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is None:
            raise UsageError("standard output is closed; allowed: a terminal, a pipe or a file")
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" for what it lacks
        code = COMMANDS[arguments.command](arguments[arguments.command])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more at its end: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_BROKEN_PIPE
    except (ValueError, OSError) as error:
        if sys.flags.dev_mode:
            raise
        print(f"litspec: error: {str(error).strip()}", file=sys.stderr)
        return EXIT_MISTAKE


def _build_parsers() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    from jsonargparse import ArgumentParser

    from litspec import __version__
    from litspec.api.config import EngineConfig, ServeConfig
    from litspec.api.config_sources import add_config_flags

    def new_parser(**options: Any) -> ArgumentParser:
        return ArgumentParser(exit_on_error=False, allow_abbrev=False, **options)

    top = new_parser(prog="litspec", description="Open language models, served fast and exactly.", version=__version__)
    subcommands = top.add_subcommands(required=True, dest="command")
    parsers: dict[str, ArgumentParser] = {}

    def add_command(name: str, help: str, epilog: str | None = None) -> ArgumentParser:
        parsers[name] = new_parser(description=f"{help[0].upper()}{help[1:]}.", epilog=epilog)
        subcommands.add_subcommand(name, parsers[name], help=help)
        return parsers[name]

    serve = add_command("serve", "serve a model over HTTP")
    add_config_flags(serve, ServeConfig)

    generate = add_command("generate", "answer one prompt", SAMPLING_NOTE)
    generate.add_argument("--prompt", type=str, required=True, help="the prompt; - reads it from standard input")
    generate.add_argument("--raw", action="store_true", help="feed the prompt as it is, without the chat template")
    generate.add_argument("--json", action="store_true", help="print one JSON object: the Completion's fields")
    chat = add_command("chat", "talk with a model in the terminal", SAMPLING_NOTE)
    for parser in (generate, chat):
        _add_sampling_flags(parser)
        add_config_flags(parser, EngineConfig, defaults=ONE_REQUEST)

    bench = add_command("bench", "measure on this machine what speculation gains")
    for flag, kind, help in BENCH_FLAGS.values():
        bench.add_argument(f"--{flag}", type=kind, default=SUPPRESS, help=help)
    add_config_flags(bench, EngineConfig, defaults={"max_batch_size": "1, or what the load needs"})

    download = add_command("download", "take a model into the cache folder and print where it lies")
    download.add_argument("name", type=str, help="a name (smollm2-135m-instruct) or a hub id (org/name)")
    return top, parsers


def _add_sampling_flags(parser: ArgumentParser) -> None:
    for name, (kind, help) in SAMPLING_FLAGS.items():
        flag = "--" + name.replace("_", "-")
        if kind is bool:
            parser.add_argument(flag, action="store_true", default=SUPPRESS, help=help)
        elif get_origin(kind) is list:
            parser.add_argument(flag, action="append", default=SUPPRESS, help=help)
        else:
            parser.add_argument(flag, type=kind, default=SUPPRESS, help=help)


def _parse(argv: list[str]) -> Namespace:
    top, parsers = _build_parsers()
    if not argv:
        raise UsageError(f"no command was given; allowed: {', '.join(parsers)}; `litspec --help` says more")
    try:
        return top.parse_args(argv)
    except ArgumentError as error:
        command = next((word for word in argv if word in parsers), None)
        known = [flag for action in parsers[command]._actions for flag in action.option_strings] if command else []
        hint = f"; `litspec {command} --help` lists the flags" if command else f"; allowed: {', '.join(parsers)}"
        raise UsageError(_explain(str(error), known, hint)) from None


def _explain(message: str, known_flags: list[str], hint: str) -> str:
    """Say in one line what the parser did not accept: what was given, what is allowed."""
    from litspec.api.config import ServeConfig

    if match := re.search(r'Parser key "(\w+)":.*(?:Got value|Given value): (.*)', message, re.DOTALL):
        name, value = match.groups()
        setting = ServeConfig.__dataclass_fields__.get(name)
        kind = re.search(r"<class '(\w+)'>", message)
        allowed = setting.metadata["allowed"] if setting else TYPE_NAMES.get(kind[1], kind[1]) if kind else "see --help"
        return f"--{name.replace('_', '-')} was {value!r}; allowed: {allowed}"
    if match := re.search(r"arguments are required: (?:\w+\.)?(\w+)", message):
        name = match[1] if match[1] == "name" else f"--{match[1]}"
        return f"{name} is missing{hint}"
    if match := re.search(r"unrecognized arguments: (.*)", message, re.DOTALL):
        nearest = difflib.get_close_matches(match[1].split("=")[0].split()[0], known_flags, n=1)
        return f"unknown argument {match[1]}{f'; did you mean {nearest[0]}?' if nearest else hint}"
    if match := re.search(r"argument (--\S+): expected one argument", message):
        return f"{match[1]} lacks its value; one that begins with a dash is written {match[1]}=…"
    if match := re.search(r"invalid choice: '([^']*)'", message):
        return f"unknown command {match[1]!r}{hint}"
    return " ".join(message.split())


def _sampling_params(arguments: Namespace) -> SamplingParams:
    """Return SamplingParams of the flags that were given, so that the model's generation_config fills in the rest."""
    from litspec.engine.params import SamplingParams

    values = {name: value for name, value in vars(arguments).items() if name in SAMPLING_FLAGS}
    if "logit_bias" in values:
        values["logit_bias"] = dict(map(_read_bias, values["logit_bias"]))
    if "stop_token_ids" in values:
        values["stop_token_ids"] = [_read_token_id(text) for text in values["stop_token_ids"]]
    return SamplingParams(**values)


def _read_token_id(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--stop-token-ids was {text!r}; allowed: a token id, given once for each")
    return int(text)


def _read_bias(text: str) -> tuple[str, float]:
    token_id, _, number = text.partition("=")
    try:
        return token_id, float(number)
    except ValueError:
        raise UsageError(f"--logit-bias was {text!r}; allowed: ID=NUMBER, as in 42=-5") from None


def _config(arguments: Namespace, cls: type[ConfigType], *, defaults: Mapping[str, Any] | None = None) -> ConfigType:
    """Return the settings of `--config`, over them `defaults`, and over both the flags that were given."""
    from litspec.api.config_sources import given_flags, load_config

    return load_config(vars(arguments).get("config"), cls, {**(defaults or {}), **given_flags(arguments, cls)})


def _load(arguments: Namespace) -> LLM:
    """Load the model that the flags name, with room for one request unless they say otherwise."""
    from litspec.api.config import EngineConfig

    config = _config(arguments, EngineConfig, defaults=ONE_REQUEST)
    from litspec import LLM

    return LLM.load_cold(config)


def _serve(arguments: Namespace) -> int:
    from litspec.api.config import ServeConfig

    config = _config(arguments, ServeConfig)
    from litspec.serve import run

    return run(config)


def _generate(arguments: Namespace) -> int:
    params = _sampling_params(arguments)
    prompt = _read_prompt() if arguments.prompt == "-" else arguments.prompt
    with _load(arguments) as llm:
        if not prompt:
            # Refused where it has no token at all, before a template gives it some.
            llm.engine.check_request(llm.prepare(prompt, params))
        asked = prompt if arguments.raw else [{"role": "user", "content": prompt}]
        completion = None
        for chunk in _stream(llm, asked, params):
            completion = chunk.completion or completion
            if not arguments.json:
                print(chunk.text, end="", flush=True)
        assert completion is not None, "a stream ends with its Completion"
        if arguments.json:
            print(json.dumps(completion.to_dict()))
        elif not completion.text.endswith("\n"):
            print()
    if completion.finish_reason == "error":
        print(f"litspec: error: {completion.error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _read_prompt() -> str:
    if sys.stdin is None:
        raise UsageError("--prompt was -, but standard input is closed; give the prompt itself, or pipe it in")
    try:
        text = sys.stdin.read()
        text.encode("utf-8")  # a locale that is not UTF-8 smuggles foreign bytes in as half surrogates
    except UnicodeError:
        raise UsageError("standard input is not UTF-8; allowed: UTF-8 text") from None
    return text.removesuffix("\n")


def _stream(llm: LLM, asked: str | list[dict[str, str]], params: SamplingParams) -> Iterator[Chunk]:
    from litspec.engine.params import ParameterError

    try:
        return llm.stream(asked, params)
    except ParameterError as error:
        if error.param != "messages":
            raise
        raise UsageError(f"{error} (--raw feeds the prompt without a chat template)") from None


def _chat(arguments: Namespace) -> int:
    from litspec.api.terminal import chat

    params = _sampling_params(arguments)
    with _load(arguments) as llm:
        chat(llm, params)
    return 0


def _bench(arguments: Namespace) -> int:
    from litspec.api.config import EngineConfig
    from litspec.bench.scenario import BenchOptions, integers, run_scenario

    values, keys = vars(arguments), {name: flag.replace("-", "_") for name, (flag, _, _) in BENCH_FLAGS.items()}
    given = {name: values[key] for name, key in keys.items() if key in values}
    if "concurrency" in given:
        given["concurrency"] = integers("concurrency", given["concurrency"])
    options = BenchOptions(**given)
    run_scenario(options, _config(arguments, EngineConfig, defaults=options.engine_defaults()))
    return 0


def _download(arguments: Namespace) -> int:
    from litspec.model.source import download
    from litspec.ops.kernels import load_kernels

    folder = download(arguments.name)
    load_kernels()  # compiled here, so that the first answer need not wait for it
    print(folder)
    return 0


COMMANDS = {"serve": _serve, "generate": _generate, "chat": _chat, "bench": _bench, "download": _download}
