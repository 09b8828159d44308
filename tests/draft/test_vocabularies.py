"""A draft and a target with one tokenizer whose vocabularies are padded to different sizes."""

from __future__ import annotations

import pytest

from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_gpt, tiny_model

PROMPTS = [[3], random_prompt(17, seed=1), [95, 94, 93, 90, 95]]


@pytest.mark.parametrize("draft_size", [64, 96, 128])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.9, "top_k": 90, "seed": 6}])
def test_the_text_is_the_targets_whatever_the_sizes(draft_size, sampled):
    requests = [ask(str(i), prompt, max_new_tokens=24, **sampled) for i, prompt in enumerate(PROMPTS)]
    engine = make_engine(draft=tiny_model(n_layer=2, vocab_size=draft_size), num_draft_tokens=3)
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests]
    assert sum(c.stats.drafted for c in completions) > 0
    assert_idle(engine)


def test_a_draft_never_proposes_an_id_that_the_target_lacks():
    """The draft's favourites lie beyond the target's vocabulary; what it proposes must not."""
    small = tiny_model(vocab_size=8)
    requests = [ask(str(seed), [seed], max_new_tokens=20, temperature=1.5, seed=seed) for seed in range(4)]
    engine = make_engine(small, draft=tiny_model(seed=3, vocab_size=512), num_draft_tokens=3)
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(r, tiny_gpt(vocab_size=8)) for r in requests]
