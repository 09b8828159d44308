"""How long prompts hold up the rows that decode: by one piece of PREFILL_TOKENS tokens in a step, padding included."""

from __future__ import annotations

import pytest

from litspec.engine.engine import PREFILL_TOKENS, Engine
from litspec.engine.request import Request
from litspec.model.window import Shapes
from tests.engine.scripted import ScriptedTarget, Spy
from tests.engine.support import ask, assert_idle, make_engine, random_prompt

STEP_WIDTHS = (1, 2, 3, 5)


def truth(tokens: list[int]) -> int:
    """A next token that depends on how many there are and on the last one."""
    return (tokens[-1] * 5 + len(tokens)) % 31


def continued(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(truth(tokens))
    return tokens[len(prompt) :]


def spied(*, slots: int, draft: str = "none", context: int = 2048, shapes: Shapes | None = None) -> tuple[Engine, Spy]:
    spy = Spy(ScriptedTarget(truth, max_seq_length=context))
    return make_engine(spy, draft=draft, slots=slots, shapes=shapes), spy


def prompt_of(length: int, seed: int) -> list[int]:
    return random_prompt(length, seed=seed, vocab_size=31)


def step(engine: Engine, spy: Spy) -> tuple[list[tuple[int, int]], list[int]]:
    """Step once; return the shapes of the pieces of prompt, and the tokens that each decoding row was brought."""
    decoding = [r for r in engine.scheduler.running if not r.is_prefilling]
    before = [r.num_emitted for r in decoding]
    spy.calls.clear()
    engine.step()
    pieces = spy.shapes[:-1] if decoding else spy.shapes
    return pieces, [r.num_emitted - n for r, n in zip(decoding, before, strict=True)]


def start(engine: Engine, count: int, *, limit: int = 200) -> list[Request]:
    rows = [ask(f"row {i}", prompt_of(3 + i, i), max_new_tokens=limit) for i in range(count)]
    for row in rows:
        engine.add_request(row)
    engine.step()
    assert all(row.num_emitted == 1 for row in rows)
    return rows


@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_1500_tokens_arrive_while_seven_rows_decode_and_each_gets_a_token_in_every_step(draft):
    engine, spy = spied(slots=8, draft=draft)
    rows = start(engine, 7)
    long = ask("long", prompt_of(1500, 99), max_new_tokens=4)
    engine.add_request(long)
    fed = []
    while long.is_prefilling:
        pieces, gained = step(engine, spy)
        assert len(gained) == 7 and min(gained) >= 1
        fed += pieces
    assert fed == [(1, 256)] * 6, "1500 tokens in six pieces, each as wide as may be"
    while engine.has_active_requests():
        engine.step()
    assert long.output_ids == continued(long.prompt_ids, 4)
    assert [row.output_ids for row in rows] == [continued(row.prompt_ids, 200) for row in rows]
    assert_idle(engine)


@pytest.mark.parametrize(
    ("num_long", "slots", "shapes"),
    [
        (2, 8, None),
        (5, 8, None),
        (7, 8, None),
        (3, 6, None),
        (19, 20, None),
        (30, 32, None),
        (4, 5, Shapes((3, 5), STEP_WIDTHS, (5, 40))),
        (11, 12, Shapes((3, 12), STEP_WIDTHS, (30,))),
    ],
)
def test_prompts_that_come_together_share_the_bound(num_long, slots, shapes):
    engine, spy = spied(slots=slots, context=512, shapes=shapes)
    row = start(engine, 1, limit=400)[0]
    longs = [ask(f"long {i}", prompt_of(90 + 7 * i, 50 + i), max_new_tokens=3) for i in range(num_long)]
    for long in longs:
        engine.add_request(long)
    num_steps = 0
    while num_steps == 0 or any(long.is_prefilling for long in longs):
        pieces, gained = step(engine, spy)
        num_steps += 1
        assert len(pieces) <= 1 and min(gained) >= 1
        assert all(rows * width <= PREFILL_TOKENS for rows, width in pieces)
    tokens = sum(long.num_prompt_tokens for long in longs)
    assert num_steps <= 12 + 8 * tokens / PREFILL_TOKENS, "the bound is used"
    while any(long.finish_reason is None for long in longs):
        engine.step()
    assert row.finish_reason is None
    assert [long.output_ids for long in longs] == [continued(long.prompt_ids, 3) for long in longs]


def test_a_short_prompt_behind_a_long_one_is_served_beside_it():
    engine, spy = spied(slots=8)
    rows = start(engine, 2)
    engine.add_request(long := ask("long", prompt_of(1500, 9), max_new_tokens=4))
    step(engine, spy)
    engine.add_request(short := ask("short", prompt_of(12, 8), max_new_tokens=4))
    before = long.length
    step(engine, spy)
    assert short.num_emitted == 1, "in its first step"
    assert long.length > before, "and the long one went on"
    assert long.is_prefilling and all(row.num_emitted == 3 for row in rows)


def test_when_more_rows_read_than_a_step_has_room_for_those_that_came_first_go_first():
    engine, spy = spied(slots=32, context=512)
    start(engine, 1)
    longs = [ask(f"long {i}", prompt_of(100, 50 + i), max_new_tokens=9) for i in range(31)]
    for long in longs:
        engine.add_request(long)
    pieces, _ = step(engine, spy)
    assert pieces == [(16, 16)]
    assert [long.length for long in longs] == [16] * 16 + [0] * 15
    while any(long.is_prefilling for long in longs[:16]):
        step(engine, spy)
    assert all(long.is_prefilling for long in longs[16:])
    for _ in range(7):
        step(engine, spy)
    assert not any(long.is_prefilling for long in longs)


def test_where_nobody_decodes_pieces_are_as_wide_as_there_are():
    engine, spy = spied(slots=4, context=1024)
    longs = [ask(f"long {i}", prompt_of(600 + i, 50 + i), max_new_tokens=2) for i in range(4)]
    for long in longs:
        engine.add_request(long)
    shapes = [step(engine, spy)[0] for _ in range(3)]
    assert shapes == [[(4, 256)], [(4, 256)], [(4, 256)]]
    assert all(long.num_emitted == 1 for long in longs)
