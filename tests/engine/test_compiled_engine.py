"""The engine with Thunder: the eager engine's tokens, and no shape that warm_up did not meet."""

from __future__ import annotations

import pytest

from litspec.draft import NgramProposer
from litspec.model.window import Shapes
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_model

SHAPES = Shapes((1, 3), (1, 4), (16,))


def requests(num_tokens: int):
    return [
        ask(str(i), random_prompt(length, seed=i), max_new_tokens=num_tokens, temperature=temperature, seed=i)
        for i, (length, temperature) in enumerate([(3, 0.0), (40, 1.0), (17, 0.7), (1, 0.0), (20, 1.3)])
    ]


@pytest.mark.parametrize("draft", ["model", "ngram", "early-exit:2"])
def test_compiled_tokens_equal_recomputed_ones_and_no_shape_is_new(draft):
    target = tiny_model(mode="thunder")
    smaller = tiny_model(mode="thunder", n_layer=2)
    choice = {"model": smaller, "ngram": NgramProposer()}.get(draft, draft)
    engine = make_engine(target, draft=choice, num_draft_tokens=3, slots=3, shapes=SHAPES)
    assert engine.compiled_shapes == 0
    engine.warm_up()
    assert engine.compiled_shapes == 6
    shapes = target.num_shapes, smaller.num_shapes
    assert smaller.num_shapes == (6 if draft == "model" else 0)
    completions = run(engine, requests(30))
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests(30)]
    assert (target.num_shapes, smaller.num_shapes) == shapes
    twin = engine.twin()
    assert [c.token_ids for c in run(twin, requests(30))] == [c.token_ids for c in completions]
    assert (target.num_shapes, smaller.num_shapes) == shapes, "a twin needs no new shape"
    if draft == "ngram":
        steps = 0
        for number in range(100):
            engine.add_request(ask(f"{number}", random_prompt(1 + number % 50, seed=number), max_new_tokens=8))
        while engine.has_active_requests():
            engine.step()
            steps += 1
        assert steps >= 200
        assert (target.num_shapes, smaller.num_shapes) == shapes
    assert_idle(engine)
