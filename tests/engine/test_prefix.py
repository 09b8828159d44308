"""Where a request begins: the choice as a pure function, and what is fed where a prefix is reused.

Every text is compared with one recomputed without cache. Cases: KV-11, KV-13 (with reuse, and with the switch off).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litspec.engine.prefix import MIN_COPIED, PrefixCache, common_prefix, leader_of
from litspec.engine.request import Request
from litspec.model.window import Shapes
from tests.engine.scripted import Spy
from tests.engine.support import DRAFTS, ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_model

BASE = random_prompt(50, seed=8)
lists = st.lists(st.integers(0, 1), max_size=40)


def naive_common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def fed(spy: Spy, slot: int) -> list[int]:
    """Return the positions that a slot was fed, forward by forward."""
    return [position for forward in spy.fed(slot) for position, _ in forward]


def running(name: str, prompt: list[int], *, length: int, emitted: tuple[int, ...] = ()) -> Request:
    request = ask(name, prompt)
    request.tokens += emitted
    request.length = length
    return request


@given(stem=lists, a=lists, b=lists)
def test_common_prefix_equals_a_count_one_by_one(stem, a, b):
    a, b = stem + a, stem + b
    assert common_prefix(a, b) == common_prefix(b, a) == naive_common(a, b)


@given(
    stem=st.lists(st.integers(0, 1), min_size=12, max_size=30),
    prompt=lists,
    slots=st.lists(st.tuples(st.sampled_from(["empty", "held", "running"]), st.integers(0, 30), lists), max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_a_placement_is_free_true_and_as_long_as_pays(stem, prompt, slots, order):
    request = ask("new", [*stem, *prompt])
    cache = PrefixCache(is_enabled=True)
    slots = [("empty", 0, []), *slots]
    rows, holds, free = {}, {}, []
    for slot, (kind, cut, rest) in enumerate(slots):
        tokens = stem[:cut] + rest
        if kind == "running" and tokens:
            rows[slot] = running(str(slot), tokens, length=max(0, len(tokens) - 1), emitted=(1,))
            holds[slot] = rows[slot].tokens[: rows[slot].length]
        else:
            free.append(slot)
            holds[slot] = tokens if kind == "held" else []
            cache.keep(slot, holds[slot])
    order.shuffle(free)
    slot, source, length = cache.place(request, free, rows)
    best = max(naive_common(request.prompt_ids[:-1], tokens) for tokens in holds.values())
    assert slot in free
    assert holds[source][:length] == request.prompt_ids[:length] and length < len(request.prompt_ids)
    if source != slot:
        assert length >= MIN_COPIED
        assert not holds[slot], "an empty slot is taken before one that holds something"
    elif holds[slot]:
        assert 2 * length >= len(holds[slot]), "little is gained by what is destroyed"
    assert length == best or best < MIN_COPIED or 2 * best < MIN_COPIED
    off = PrefixCache(is_enabled=False).place(request, free, rows)
    assert (off.slot, off.length) == (min(free), 0)


def test_the_slot_given_back_longest_ago_is_the_one_that_goes():
    cache = PrefixCache(is_enabled=True)
    for slot in range(3):
        cache.keep(slot, [slot] * 30)
    assert cache.place(ask("a", [9] * 5), [2, 0, 1], {}) == (2, 2, 0)
    assert cache.place(ask("a", [1] * 20), [2, 0, 1], {}) == (1, 1, 19)
    cache.forget(1)
    assert cache.place(ask("a", [9] * 5), [2, 0, 1], {}) == (1, 1, 0), "an empty one first"
    assert cache.place(ask("a", [2] * 20 + [5] * 9), [2, 0, 1], {}) == (2, 2, 20)
    cache.keep(2, [2] * 90)
    assert cache.place(ask("a", [2] * 20 + [5] * 9), [2, 0, 1], {}) == (1, 2, 20), "copied: the long one stays"
    assert cache.place(ask("a", [2] * 15 + [5] * 9), [2, 0, 1], {}) == (1, 1, 0), "too little to copy"
    assert cache.place(ask("a", [2] * 20, prompt_logprobs=0), [2, 0, 1], {}) == (1, 1, 0)


def test_a_leader_is_one_that_still_feeds_the_longest_prefix():
    stem = [1] * 40
    new = ask("new", [*stem, 2, 3])
    rows = {
        0: running("decoding", stem, length=40, emitted=(1,)),
        1: running("shorter", [*stem[:30], 5], length=4),
        2: running("longest", [*stem, 2, 4], length=0),
        3: running("other", [7] * 60, length=0),
    }
    assert leader_of(new, rows, beyond=0) == (rows[2], 41)
    assert leader_of(new, rows, beyond=41 - MIN_COPIED) == (rows[2], 41)
    assert leader_of(new, rows, beyond=42 - MIN_COPIED) is None
    assert leader_of(ask("same", [*stem, 2, 4]), rows, beyond=0) == (rows[2], 41), "its own last token it feeds"
    assert leader_of(new, {0: rows[0]}, beyond=0) is None and leader_of(new, {}, beyond=0) is None


@pytest.mark.parametrize("draft", DRAFTS)
def test_KV_11_same_prompt_a_beginning_of_it_and_one_that_ends_otherwise(draft):
    """Results are those of a cold start, and of a prompt that the cache holds the last token is fed all the same."""
    engine = make_engine(draft=draft, slots=2)
    engine.target = spy = Spy(engine.target)
    prompts = [BASE, BASE, BASE[:-1], [*BASE[:-1], BASE[-1] ^ 1], BASE[:20], [*BASE, 3, 4]]
    cached, used = (0, 49, 48, 49, 19, 49), (0, 0, 0, 0, 1, 0)  # a short beginning is copied: the long rest stays
    for number, (prompt, length, slot) in enumerate(zip(prompts, cached, used, strict=True)):
        spy.calls.clear()
        request = ask(f"{number}", prompt, max_new_tokens=6, temperature=1.0, seed=number)
        completion = run(engine, [request])[0]
        assert completion.token_ids == recompute(request)
        assert completion.stats.cached_tokens == length
        assert fed(spy, slot)[0] == length and fed(spy, 1 - slot) == []
    assert_idle(engine)
    assert (engine.stats.prefix_queries, engine.stats.prefix_hits) == (6, 5)
    assert (engine.stats.cached_tokens, engine.stats.prompt_tokens) == (sum(cached), sum(map(len, prompts)))


@pytest.mark.parametrize("draft", ["ngram", "model", "early-exit:1"])
def test_a_chat_of_many_turns_feeds_what_is_new_alone(draft):
    draft_spy = Spy(tiny_model(n_layer=2))
    engine = make_engine(draft=draft_spy if draft == "model" else draft, slots=2)
    engine.target = spy = Spy(engine.target)
    prompt, cached = random_prompt(30, seed=1), 0
    for turn in range(5):
        spy.calls.clear(), draft_spy.calls.clear()
        request = ask(f"{turn}", prompt, max_new_tokens=8, temperature=0.8, seed=turn)
        completion = run(engine, [request])[0]
        assert completion.token_ids == recompute(request)
        assert completion.stats.cached_tokens == cached, "all but the last answer's last token, which was never fed"
        assert min(fed(spy, 0)) == cached and fed(spy, 1) == []
        if draft == "model":  # which lacks a few tokens more
            assert cached - 6 <= min(fed(draft_spy, 0)) <= cached
        cached = len(prompt) + 7
        prompt = [*prompt, *completion.token_ids, *random_prompt(6, seed=50 + turn)]
    assert_idle(engine)


@pytest.mark.parametrize("draft", ["none", "ngram", "model", "self"])
def test_what_a_running_request_holds_is_copied(draft):
    first = ask("first", BASE, max_new_tokens=40, temperature=1.0, seed=1)
    second = ask("second", [*BASE[:40], 7, 8, 9], max_new_tokens=20, temperature=1.0, seed=2)
    engine = make_engine(draft=draft, slots=2)
    engine.target = spy = Spy(engine.target)
    engine.add_request(first)
    for _ in range(4):
        engine.step()
    assert not first.is_prefilling
    engine.add_request(second)
    while engine.has_active_requests():
        engine.step()
    assert second.stats.cached_tokens == 40 and min(fed(spy, 1)) == 40
    assert (first.output_ids, second.output_ids) == (recompute(first), recompute(second))
    assert_idle(engine)


@pytest.mark.parametrize("draft", ["ngram", "model"])
@pytest.mark.parametrize("leader_ends", [None, "abort", "error"])
def test_who_shares_a_prefix_that_is_being_fed_waits_and_copies_it(draft, leader_ends):
    prompt = random_prompt(120, seed=3)
    leader = ask("leader", prompt, max_new_tokens=9)
    follower = ask("follower", [*prompt[:100], prompt[100] ^ 1, 6], max_new_tokens=9, temperature=1.0)
    beside = ask("beside", [1, 2], max_new_tokens=30)
    engine = make_engine(draft=draft, slots=3, shapes=Shapes((1, 3), (1, 5), (16,)))
    engine.target = spy = Spy(engine.target)
    engine.add_request(beside)
    engine.step()
    engine.add_request(leader)
    engine.add_request(follower)
    engine.step()
    assert (leader.length, follower.length, engine.num_followers) == (16, 0, 1)
    if leader_ends == "abort":
        engine.abort("leader")
    elif leader_ends == "error":
        engine.fail("leader", "gone")
    while engine.has_active_requests():
        engine.step()
    assert [r.output_ids for r in (follower, beside)] == [recompute(r) for r in (follower, beside)]
    assert follower.stats.cached_tokens == {None: 100, "abort": 16, "error": 0}[leader_ends]
    assert min(fed(spy, 2)) == follower.stats.cached_tokens, (
        "what an aborted leader had fed is right; a failed one's not"
    )
    assert engine.stats.prefix_hits == (leader_ends != "error")
    if leader_ends is None:
        assert leader.output_ids == recompute(leader)
    assert_idle(engine)


@pytest.mark.parametrize("limit", [1, 6])
def test_n_choices_feed_their_prompt_once(limit):
    prompt = random_prompt(100, seed=4)
    choices = [ask(f"{i}", prompt, max_new_tokens=limit, temperature=2.0, n=4, choice=i) for i in range(4)]
    alone = [run(make_engine(slots=1), [choice])[0].token_ids for choice in choices]
    engine = make_engine(draft="ngram", slots=4)
    engine.target = spy = Spy(engine.target)
    completions = run(engine, choices)
    assert [c.token_ids for c in completions] == alone
    assert len(set(map(tuple, alone))) > 1
    assert [c.stats.cached_tokens for c in completions] == [0, 99, 99, 99]
    assert sorted(p for slot in range(4) for p in fed(spy, slot) if p < 99) == list(range(99))
    assert engine.stats.cached_tokens == 3 * 99 and engine.stats.prefix_hits == 3
    assert_idle(engine)


def test_prompt_logprobs_feed_the_whole_prompt():
    engine = make_engine(slots=1)
    for number in range(2):
        completion = run(engine, [ask(f"{number}", BASE, max_new_tokens=2, prompt_logprobs=0)])[0]
        assert completion.stats.cached_tokens == 0
        assert completion.prompt_logprobs is not None and len(completion.prompt_logprobs) == len(BASE)
    assert engine.stats.prefix_queries == engine.stats.prefix_hits == 0
    assert run(engine, [ask("plain", BASE, max_new_tokens=2)])[0].stats.cached_tokens == 49, "it leaves a prefix"


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_KV_13_without_reuse_a_slot_that_was_given_back_holds_nothing(draft):
    engine = make_engine(draft=draft, slots=2, prefix_reuse=False)
    for number in range(4):
        together = [ask(f"{number} {i}", BASE[: 40 + number], max_new_tokens=5) for i in range(3)]
        for request, completion in zip(together, run(engine, together), strict=True):
            assert completion.token_ids == recompute(request) and completion.stats.cached_tokens == 0
        assert engine.cache.fed_S[:2].tolist() == [0, 0]
        assert draft != "model" or engine.proposer.lengths == [0, 0]
    assert (engine.stats.prefix_queries, engine.stats.cached_tokens, engine.num_followers) == (0, 0, 0)


def test_the_cache_of_a_request_that_failed_is_not_reused():
    engine = make_engine(draft="model", slots=1)
    for end, cached in ((lambda: engine.fail("a", "gone"), 0), (lambda: engine.abort("a"), 49)):
        engine.add_request(ask("a", BASE, max_new_tokens=20))
        engine.step(), engine.step()
        end()
        request = ask("b", BASE, max_new_tokens=3)
        completion = run(engine, [request])[0]
        assert (completion.stats.cached_tokens, completion.token_ids) == (cached, recompute(request))


def test_a_long_conversation_survives_those_that_share_its_beginning():
    engine = make_engine(slots=3)
    long = random_prompt(120, seed=5)
    run(engine, [ask("old", random_prompt(30, seed=6), max_new_tokens=2)])
    run(engine, [ask("long", long, max_new_tokens=2)])
    for number in range(2):
        stranger = [*long[:20], *random_prompt(30, seed=60 + number)]
        completion = run(engine, [ask(f"{number}", stranger, max_new_tokens=2)])[0]
        assert completion.stats.cached_tokens == 20, "copied, first into the empty slot, then over the oldest"
    assert run(engine, [ask("again", long, max_new_tokens=2)])[0].stats.cached_tokens == 119
