"""The command line against a fake LLM: flags, exit codes, what goes to which stream."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import types
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from litspec import __version__
from litspec.api.config import EngineConfig
from litspec.cli import SAMPLING_FLAGS, main
from litspec.engine.params import ParameterError, SamplingParams


@dataclass
class FakeChunk:
    text: str
    token_ids: list[int]
    completion: Any = None


@dataclass
class FakeCompletion:
    text: str
    finish_reason: str = "stop"
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "finish_reason": self.finish_reason}


@dataclass
class FakeLLM:
    """Answers with the words of `answer`, one a chunk; remembers what it was asked."""

    loads: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[tuple[Any, SamplingParams]]] = []
    answer: ClassVar[list[str]] = ["Hello", " wörld"]
    error: ClassVar[str | None] = None
    closed_streams: ClassVar[int] = 0
    has_template: ClassVar[bool] = True
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, model: str, **options: Any) -> FakeLLM:
        if model == "no-such-model":
            raise ValueError("model was 'no-such-model'; allowed: smollm2-135m-instruct")
        cls.loads.append({"model": model, **options})
        return cls(options)

    @classmethod
    def load_cold(cls, config: EngineConfig) -> FakeLLM:
        return cls.load(config.model, **config.load_options())

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def engine(self) -> FakeLLM:
        return self

    def prepare(self, prompt: Any, params: SamplingParams) -> Any:
        return prompt

    def check_request(self, request: Any) -> None:
        if not request:
            raise ParameterError("prompt was ''; allowed: a text of at least one token", param="prompt")

    def stream(self, prompt: Any, params: SamplingParams) -> Any:
        FakeLLM.asked.append((prompt, params))
        if not self.has_template and not isinstance(prompt, str):
            raise ParameterError("this model has no chat template", param="messages")
        return self.chunks()

    def chunks(self) -> Any:
        try:
            for word in self.answer:
                if word == "<ctrl-c>":
                    os.kill(os.getpid(), signal.SIGINT)
                    continue
                yield FakeChunk(word, [1])
            text = "".join(self.answer)
            reason = "error" if self.error else "stop"
            yield FakeChunk("", [], FakeCompletion(text, reason, self.error))
        finally:
            FakeLLM.closed_streams += 1


@pytest.fixture
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    module = types.ModuleType("litspec.api.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litspec.api.llm", module)
    FakeLLM.loads, FakeLLM.asked, FakeLLM.closed_streams = [], [], 0
    FakeLLM.answer, FakeLLM.error, FakeLLM.has_template = ["Hello", " wörld"], None, True
    return FakeLLM


def run_python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, **options)


def test_generate_streams_the_text_through_the_chat_template(fake_llm, capsys):
    assert main(["generate", "--prompt", "Hi", "--model", "debug"]) == 0
    assert capsys.readouterr() == ("Hello wörld\n", "")
    assert fake_llm.asked == [([{"role": "user", "content": "Hi"}], SamplingParams())]
    assert fake_llm.loads[0]["model"] == "debug"
    assert fake_llm.loads[0]["max_batch_size"] == 1


def test_generate_raw_feeds_the_prompt_as_it_is(fake_llm):
    assert main(["generate", "--prompt", "{a: 1}", "--raw"]) == 0
    assert fake_llm.asked[0][0] == "{a: 1}"


def test_generate_json_prints_one_object_and_nothing_else(fake_llm, capsys):
    assert main(["generate", "--prompt", "Hi", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"text": "Hello wörld", "finish_reason": "stop"}
    assert err == ""


def test_prompt_from_standard_input_loses_its_last_newline_only(fake_llm, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n\n"))
    assert main(["generate", "--prompt", "-", "--raw"]) == 0
    assert fake_llm.asked[0][0] == "one\ntwo\n"


def test_a_model_without_a_template_needs_raw(fake_llm, capsys):
    fake_llm.has_template = False
    assert main(["generate", "--prompt", "Hi"]) == 2
    assert "--raw feeds the prompt" in capsys.readouterr().err
    assert main(["generate", "--prompt", "Hi", "--raw"]) == 0


def test_only_given_sampling_flags_reach_sampling_params(fake_llm):
    argv = ["generate", "--prompt", "Hi", "--temperature", "0", "--stop", "null", "--stop", "[a]", "--ignore-eos"]
    assert main(argv) == 0
    params = fake_llm.asked[0][1]
    assert params.model_fields_set == {"temperature", "stop", "ignore_eos"}
    assert (params.temperature, params.stop, params.ignore_eos) == (0.0, ("null", "[a]"), True)


def test_every_sampling_parameter_has_a_flag():
    several_answers, the_engines_own = "n", "num_draft_tokens"
    assert {*SAMPLING_FLAGS, several_answers, the_engines_own} == set(SamplingParams.model_fields)


def test_sampling_flags_reach_the_request(fake_llm):
    flags = [
        "--min-p",
        "0.1",
        "--logit-bias",
        "5=-2",
        "--logit-bias",
        "7=1.5",
        "--bad-words",
        "a",
        "--bad-words",
        "b c",
    ]
    flags += ["--stop-token-ids", "3", "--stop-token-ids", "4", "--min-tokens", "2", "--include-stop-str-in-output"]
    assert main(["generate", "--prompt", "Hi", *flags]) == 0
    params = fake_llm.asked[-1][1]
    assert params == SamplingParams(
        min_p=0.1,
        logit_bias={5: -2.0, 7: 1.5},
        bad_words=("a", "b c"),
        stop_token_ids=(3, 4),
        min_tokens=2,
        include_stop_str_in_output=True,
    )


def test_flags_win_over_the_config_file(fake_llm, tmp_path):
    config = tmp_path / "pair.yaml"
    config.write_text("model: debug\ndraft: debug\nnum_draft_tokens: 2\nmax_batch_size: 16\n")
    assert main(["generate", "--config", str(config), "--prompt", "Hi", "--num-draft-tokens", "7"]) == 0
    loaded = fake_llm.loads[0]
    assert (loaded["draft"], loaded["num_draft_tokens"], loaded["max_batch_size"]) == ("debug", 7, 1)


def test_a_request_that_failed_is_told_on_stderr(fake_llm, capsys):
    fake_llm.error = "the kernel broke"
    assert main(["generate", "--prompt", "Hi"]) == 1
    assert "the kernel broke" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "no command was given"),
        (["gen"], "unknown command 'gen'; allowed: serve, generate, chat, bench, download"),
        (["generate"], "--prompt is missing"),
        (["download"], "name is missing"),
        (["generate", "--prompt", "a", "--temprature", "1"], "did you mean --temperature?"),
        (["generate", "--prompt", "a", "--logit-bias", "5"], "--logit-bias was '5'; allowed: ID=NUMBER"),
        (["generate", "--prompt", "a", "--logit-bias", "x=1"], "logit_bias"),
        (["generate", "--prompt", "a", "--stop-token-ids", "two"], "--stop-token-ids was 'two'; allowed: a token id"),
        (["generate", "--prompt", "-x"], "--prompt=…"),
        (["generate", "--prompt", "a", "--temperature", "-1"], "temperature was -1.0; allowed: a number from 0"),
        (["generate", "--prompt", "a", "--temperature", "nan"], "--temperature was 'nan'; allowed: a number"),
        (["generate", "--prompt", "a", "--temperature", ".nan"], "temperature was nan; allowed: a number from 0"),
        (["generate", "--prompt", "a", "--top-p", "0"], "top_p was 0.0; allowed: a number above 0"),
        (["generate", "--prompt", "a", "--top-k", "1.5"], "--top-k was '1.5'; allowed: an integer"),
        (["generate", "--prompt", "a", "--max-seq-length", "x"], "--max-seq-length was 'x'; allowed: an integer"),
        (["generate", "--prompt", "a", "--num-draft-tokens", "x"], "--num-draft-tokens was 'x'; allowed: auto, or an"),
        (
            ["generate", "--prompt", "a", "--num-draft-tokens", "0"],
            "num_draft_tokens was 0; allowed: auto, or an integ",
        ),
        (["generate", "--prompt", "a", "--prefix-reuse", "1"], "--prefix-reuse was '1'; allowed: true or false"),
        (["generate", "--prompt", "a", "--prefix-reuse"], "--prefix-reuse lacks its value"),
        (["generate", "--prompt", "a", "--batching", "static"], "--batching was 'static'; allowed: continuous, fixed"),
        (["serve", "--generate-timeout", "0"], "generate_timeout was 0.0; allowed: a number of seconds above 0"),
        (["generate", "--prompt", "a", "--dtype", "q"], "--dtype was 'q'; allowed: auto, float64"),
        (["generate", "--prompt", "a", "--model", "no-such-model"], "allowed: smollm2-135m-instruct"),
        (["generate", "--prompt", ""], "prompt was ''; allowed"),
        (["generate", "--prompt", "a", "--config", "serve/smolm2-135m"], "Did you mean serve/smollm2-135m?"),
        (["serve", "--port", "80"], "port was 80; allowed: an integer from 1024"),
        (["bench", "--scenario", "decod"], "scenario was 'decod'; allowed: decode"),
        (["bench", "--repeats", "0"], "repeats was 0; allowed"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(fake_llm, capsys, argv, expected):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.startswith("litspec: error: ")
    assert err.count("\n") == 1, "one message"


def test_unknown_yaml_key_names_the_nearest(fake_llm, capsys, tmp_path):
    config = tmp_path / "typo.yaml"
    config.write_text("model: debug\nnum_draft_token: 3\n")
    assert main(["generate", "--prompt", "a", "--config", str(config)]) == 2
    assert "num_draft_tokens" in capsys.readouterr().err


def test_ctrl_c_is_130(fake_llm, monkeypatch, capsys):
    monkeypatch.setattr(fake_llm, "load", classmethod(lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)))
    assert main(["generate", "--prompt", "a"]) == 130
    assert capsys.readouterr() == ("", "")


def test_chat_keeps_the_history_on_a_pipe(fake_llm, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n\nAgain\n/clear\nAnew\n/exit\nnever read\n"))
    assert main(["chat", "--seed", "3"]) == 0
    assert capsys.readouterr().out == "Hello wörld\n" * 3
    conversations = [[message["content"] for message in messages] for messages, _ in fake_llm.asked]
    assert conversations == [["Hi"], ["Hi", "Hello wörld", "Again"], ["Anew"]]
    assert fake_llm.closed_streams == 3


def test_ctrl_c_ends_an_answer_and_not_the_chat(fake_llm, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\nAgain\n"))
    fake_llm.answer = ["one", "<ctrl-c>", " two", " three"]
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "one two\n" * 2
    assert fake_llm.asked[1][0][1] == {"role": "assistant", "content": "one two"}
    assert fake_llm.closed_streams == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_message_that_cannot_be_answered_ends_a_piped_chat(fake_llm, monkeypatch, capsys):
    def refuse(*_: object) -> Any:
        raise ParameterError("the prompt has 9 tokens; allowed: 8", param="prompt")
        yield

    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    monkeypatch.setattr(fake_llm, "stream", refuse)
    assert main(["chat"]) == 2
    assert capsys.readouterr().err == "litspec: error: the prompt has 9 tokens; allowed: 8\n"


def test_download_prints_the_folder(monkeypatch, capsys, tmp_path):
    source = types.ModuleType("litspec.model.source")
    source.download = lambda name: tmp_path / name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litspec.model.source", source)
    assert main(["download", "tiny"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'tiny'}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["generate"], ["chat"], ["bench"], ["download"]])
def test_help_needs_no_torch(command):
    code = (
        "import sys\nfrom litspec.cli import main\n"
        f"try:\n    main({[*command, '--help']!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'lightning', 'thunder', 'litserve', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: litspec")


def test_version():
    done = run_python("-m", "litspec", "--version")
    assert done.stdout.strip() == f"litspec {__version__}"


def test_a_reader_that_leaves_is_no_traceback(tmp_path):
    code = (
        "import sys, types\n"
        "source = types.ModuleType('litspec.model.source')\n"
        "source.download = lambda name: 'x' * 1_000_000\n"
        "sys.modules['litspec.model.source'] = source\n"
        "from litspec.cli import main\nsys.exit(main(['download', 'x']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_standard_streams_that_cannot_be_used_are_named(fake_llm, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", "--prompt", "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("half \udca6"))
    assert main(["generate", "--prompt", "-"]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        assert main(["generate", "--prompt", "hi"]) == 2
    assert "standard output is closed" in capsys.readouterr().err
    assert fake_llm.asked == []
