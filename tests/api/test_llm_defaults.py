"""What a load decides for itself: the context that the memory allows, and the sampling defaults that a model brings."""

from __future__ import annotations

import re

import pytest

from litspec import SamplingParams
from litspec.model import checkpoint as checkpoint_module
from tests.api.small_models import load_checkpoint, load_debug, save_checkpoint, set_generation_config

GREEDY = {"temperature": 0.0, "max_new_tokens": 20, "ignore_eos": True}

# Memory


def set_free(monkeypatch: pytest.MonkeyPatch, mebibytes: int) -> None:
    monkeypatch.setattr("litspec.api.loading.available_bytes", lambda device: mebibytes * 2**20)


def test_too_little_memory_is_refused_before_weights_are_read(monkeypatch):
    monkeypatch.setattr("litspec.model.gpt.GPT.__init__", lambda *_, **__: pytest.fail("memory was taken"))
    set_free(monkeypatch, 400)
    with pytest.raises(ValueError, match="the memory does not suffice: target debug") as refused:
        load_debug(draft="debug", max_batch_size=64, max_seq_length=1024)
    assert "draft debug-draft" in str(refused.value)
    assert re.search(r"cpu has 400.0 MiB free. At most max_batch_size \d+ with max_seq_length 1024", str(refused.value))


def test_what_the_refusal_advises_loads(monkeypatch):
    set_free(monkeypatch, 400)
    with pytest.raises(ValueError, match="does not suffice") as refused:
        load_debug(max_batch_size=64, max_seq_length=1024)
    slots, context = re.search(r"At most max_batch_size (\d+) with max_seq_length (\d+)", str(refused.value)).groups()
    with load_debug(max_batch_size=int(slots), max_seq_length=int(context)) as llm:
        assert llm.generate("abc", **GREEDY).completion_tokens == 20


def test_context_shrinks_with_the_memory_and_says_so(monkeypatch):
    set_free(monkeypatch, 320)
    with pytest.warns(UserWarning, match=r"max_seq_length is 1024, which the memory allows \(.* of 320.0 MiB free"):
        llm = load_debug(max_batch_size=4)
    with llm:
        assert llm.max_seq_length == 1024 == llm.describe()["max_seq_length"]
        assert llm.describe()["available_bytes"] == 320 * 2**20


def test_a_given_context_is_never_changed(monkeypatch, recwarn):
    set_free(monkeypatch, 320)
    with pytest.raises(ValueError, match="2048 tokens each"):
        load_debug(max_batch_size=32, max_seq_length=2048)
    with load_debug(max_batch_size=4, max_seq_length=1500) as llm:
        assert llm.max_seq_length == 1500
    assert not [warning for warning in recwarn if "max_seq_length" in str(warning.message)]


# What a model says of sampling


def test_a_default_that_sampling_params_know_is_taken(tmp_path, recwarn):
    folder = save_checkpoint(tmp_path)
    set_generation_config(folder, do_sample=True, min_p=0.5, repetition_penalty=1.3, top_k=7)
    with load_checkpoint(folder) as llm:
        params = llm.prepare("Hello", SamplingParams(top_k=9)).params
        assert (params.min_p, params.repetition_penalty, params.top_k) == (0.5, 1.3, 9)
    assert not [warning for warning in recwarn if "generation_config" in str(warning.message)]


def test_a_default_that_litspec_lacks_is_warned_of_once_at_load(tmp_path):
    folder = save_checkpoint(tmp_path)
    set_generation_config(folder, no_repeat_ngram_size=3, typical_p=0.9, num_beams=1, eta_cutoff=None)
    with pytest.warns(UserWarning, match=r"generation_config's no_repeat_ngram_size, typical_p is not supported"):
        llm = load_checkpoint(folder)
    with llm:
        assert llm.generate("Hello", **GREEDY).completion_tokens == 20


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("min_p", 1.5),
        ("min_p", -0.1),
        ("min_p", "low"),
        ("min_p", True),
        ("repetition_penalty", 0),
        ("repetition_penalty", 11.0),
        ("repetition_penalty", float("nan")),
        ("repetition_penalty", float("inf")),
        ("temperature", 2.5),
        ("top_k", 2.0),
        ("max_new_tokens", 0),
    ],
)
def test_a_default_out_of_range_fails_at_load_naming_file_and_key(tmp_path, key, value):
    folder = save_checkpoint(tmp_path)
    set_generation_config(folder, **{key: value})
    with pytest.raises(ValueError, match=rf"generation_config.json: {key} was {re.escape(repr(value))}; allowed"):
        load_checkpoint(folder)


def test_a_default_that_only_sampling_params_refuse_fails_at_load(tmp_path, monkeypatch):
    monkeypatch.setitem(checkpoint_module._SAMPLING_DEFAULTS, "temperature", (0.0, 99.0, False))
    folder = save_checkpoint(tmp_path)
    set_generation_config(folder, temperature=3.5)
    with pytest.raises(ValueError, match=rf"{tmp_path}: generation_config's temperature was 3.5; allowed.*mend"):
        load_checkpoint(folder)
