"""Continuous batching, turn by turn, against full forwards of transformers' own model."""

from __future__ import annotations

import random

import pytest
import torch

from nightschool.engine.scheduler import Done, Failed, Step, fits_step


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, 277) for _ in range(length)]


@torch.no_grad()
def reference_logprobs(model, ids: list[int], start: int, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of ids[start:], from one forward over everything."""
    logits = model(torch.tensor([ids])).logits[0].double() / temperature
    return [logits[at - 1].log_softmax(-1)[ids[at]].item() for at in range(start, len(ids))]


def test_cached_batched_decoding_scores_tokens_like_a_full_forward(desk, reference):
    asked = []
    for at, length in enumerate((3, 40, 17, 1, 90, 33, 21, 8, 64, 12)):  # more requests than the 8 rows
        temperature = (1.0, 0.7, 1.3)[at % 3]
        asked.append((desk.ask(prompt(at, length), temperature=temperature, max_tokens=5 + at, seed=at), temperature))
        desk.turn(at % 3)  # they join and leave while others run
    desk.finish()
    for request, temperature in asked:
        sampled = desk.tokens(request)
        start = len(request.prompt_ids)
        expected = reference_logprobs(reference, request.prompt_ids + sampled, start, temperature)
        assert desk.logprobs(request) == pytest.approx(expected, abs=1e-4)


def test_temperature_zero_takes_the_best_token_and_reports_it_at_temperature_one(desk, reference):
    request = desk.ask(prompt(1, 20), temperature=0, max_tokens=6)
    desk.finish()
    ids = request.prompt_ids + desk.tokens(request)
    for at in range(20, 26):
        assert reference(torch.tensor([ids[:at]])).logits[0, -1].argmax().item() == ids[at]
    assert desk.logprobs(request) == pytest.approx(reference_logprobs(reference, ids, 20), abs=1e-4)


def test_a_request_that_arrives_during_decoding_has_its_first_token_within_two_steps(desk):
    desk.ask(prompt(1, 30), max_tokens=50)
    desk.turn(5)
    late = desk.ask(prompt(2, 60), max_tokens=5)
    before = desk.scheduler.steps
    while not any(request is late for request, _ in desk.events):
        desk.turn()
    assert desk.scheduler.steps - before <= 2


def test_a_prefix_that_several_waiting_requests_share_is_computed_once(desk):
    shared = prompt(0, 50)
    for at in range(4):
        desk.ask(shared + prompt(10 + at, 5), max_tokens=1)
    desk.finish()
    # The first fills 54 tokens (all but its last), the three others 4 each after the shared 50; each of the
    # four sends its last prompt token through the one decode step: 54 + 3 * 4 + 4 = 70.
    assert desk.runner.num_tokens == 70
    assert desk.scheduler.reused_tokens == 150


def test_a_short_rest_is_part_of_the_decode_step(desk, reference, monkeypatch):
    filled: list[int] = []
    fill = desk.runner.fill
    monkeypatch.setattr(desk.runner, "fill", lambda rows: filled.append(len(rows)) or fill(rows))
    first = desk.ask(prompt(0, 40), max_tokens=30, seed=1)
    desk.turn(2)
    assert filled == []  # alone: one forward of 40 tokens, not one of 39 and one of 1
    late = [desk.ask(prompt(0, 35) + prompt(at, 6), max_tokens=5, seed=at) for at in (1, 2)]
    desk.turn()
    # Two rows with 5 missing tokens join one: 3 * 6 = 18 <= 1.25 * (2 * 5 + 3) = 16.25 does not hold.
    assert filled == [2]
    assert fits_step(2, 7, 8)  # 8 * 3 = 24 <= 1.25 * (7 * 2 + 8) = 27.5
    assert not fits_step(600, 1, 1)
    desk.finish()
    for request in (first, *late):
        ids = request.prompt_ids + desk.tokens(request)
        expected = reference_logprobs(reference, ids, len(request.prompt_ids))
        assert desk.logprobs(request) == pytest.approx(expected, abs=1e-4)


def test_choices_of_one_request_share_its_prompt(desk):
    request = desk.ask(prompt(0, 40), n=4, max_tokens=3, seed=5)
    desk.finish()
    assert desk.runner.num_tokens == 39 + 4 * 3  # the prompt without its last token once, then 3 steps of 4 rows
    assert len({tuple(desk.tokens(request, choice)) for choice in range(4)}) > 1


def test_the_next_turn_of_a_session_computes_only_what_is_new(desk):
    first = desk.ask(prompt(0, 40), max_tokens=6, seed=1)
    desk.finish()
    before = desk.runner.num_tokens
    desk.ask(first.prompt_ids + desk.tokens(first) + prompt(3, 10), max_tokens=1)
    desk.finish()
    # Known: 40 + 5 (the last sampled token was never sent through). New: that one and 10 more.
    assert desk.runner.num_tokens - before == 11


def test_reused_prefixes_change_no_score(desk, reference):
    shared = prompt(0, 64)
    first = desk.ask(shared, max_tokens=8, seed=1)
    desk.finish()
    asked = [desk.ask(shared + desk.tokens(first) + prompt(at, at), max_tokens=8, seed=at) for at in range(4)]
    desk.finish()
    assert desk.scheduler.reused_tokens >= 4 * 71
    for request in asked:
        ids = request.prompt_ids + desk.tokens(request)
        expected = reference_logprobs(reference, ids, len(request.prompt_ids))
        assert desk.logprobs(request) == pytest.approx(expected, abs=1e-4)


def test_a_prefix_of_a_running_row_is_reused(desk):
    shared = prompt(0, 50)
    desk.ask([*shared, 5], max_tokens=30)
    desk.turn(2)
    before = desk.runner.num_tokens
    desk.ask(shared + prompt(1, 4), max_tokens=1)
    desk.turn()
    assert desk.runner.num_tokens - before == 3 + 2  # 3 filled, one decode step of two rows


def test_kept_sequences_stay_within_their_budget(make_desk):
    desk = make_desk(kept_bytes=100 * 512)  # one token: 2 layers * 2 * 2 heads * 16 * 4 bytes = 512
    for at in range(5):
        desk.ask(prompt(at, 40), max_tokens=1)
        desk.finish()
    assert desk.scheduler.store.used_bytes == 80 * 512  # two sequences of 40; a third would not fit
    before = desk.runner.num_tokens
    desk.ask(prompt(0, 40), max_tokens=1)  # the oldest was dropped
    desk.finish()
    assert desk.runner.num_tokens - before == 40


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"top_p": 0.8}])
def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(make_desk, settings):
    alone = make_desk()
    asked = alone.ask(prompt(0, 25), max_tokens=40, seed=7, **settings)
    alone.finish()
    for companions in range(3):
        desk = make_desk()
        dice = random.Random(companions)
        for at in range(4):
            desk.ask(prompt(50 + at, dice.randrange(2, 80)), max_tokens=dice.randrange(1, 50), temperature=1.1)
        desk.turn(companions)
        again = desk.ask(prompt(0, 25), max_tokens=40, seed=7, **settings)
        for at in range(6):
            desk.ask(prompt(0, 20) + prompt(at, 9), max_tokens=dice.randrange(1, 50))
            desk.turn(dice.randrange(3))
        desk.finish()
        assert desk.tokens(again) == alone.tokens(asked)
        assert desk.logprobs(again) == pytest.approx(alone.logprobs(asked), abs=1e-4)


@pytest.mark.parametrize("adapter", ["", "one"])
def test_a_seed_gives_its_tokens_alone_among_31_others_and_with_a_known_prompt(make_desk, adapters, adapter):
    shared = prompt(0, 150)

    def finished(among: int, known: bool) -> list[tuple[list[int], list[float]]]:
        """Three requests with one beginning, one of them twice, each with its seed."""
        desk = make_desk(max_rows=32)
        for name in ("one", "two"):
            desk.runner.load(name, adapters / name)
        if known:
            desk.ask([*shared, 9], adapter=adapter, max_tokens=2)
            desk.finish()
        for at in range(among):
            theirs = shared if at % 3 else prompt(at, 40)
            name = ("", "one", "two")[at % 3] if at % 2 else adapter
            desk.ask([*theirs, at + 3], adapter=name, max_tokens=3 + at, temperature=1.2)
        before = desk.scheduler.reused_tokens
        asked = [desk.ask([*shared, *prompt(at, at)], adapter=adapter, max_tokens=24, seed=at) for at in (1, 2, 3)]
        desk.turn()
        assert len(desk.scheduler.rows) == among + 3
        desk.finish()
        assert (desk.scheduler.reused_tokens - before >= 3 * 150) == known or among
        return [(desk.tokens(request), desk.logprobs(request)) for request in asked]

    alone = finished(0, known=False)
    assert len({tuple(tokens) for tokens, _ in alone}) == 3
    for among, known in ((0, True), (29, False), (29, True)):
        for (tokens, logprobs), (expected, expected_logprobs) in zip(finished(among, known), alone, strict=True):
            assert tokens == expected
            assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)


def test_requests_without_seed_differ(desk):
    asked = [desk.ask(prompt(0, 10), max_tokens=20) for _ in range(2)]
    desk.finish()
    assert desk.tokens(asked[0]) != desk.tokens(asked[1])


def test_base_and_adapters_in_one_batch_give_what_each_gives_alone(make_desk, adapters):
    names = ["", "one", "two", "one", "", "two", "one"]
    together = make_desk()
    for name in ("one", "two"):
        together.runner.load(name, adapters / name)
    mixed = []
    for at, name in enumerate(names):
        mixed.append(together.ask([*prompt(0, 30), at + 3], adapter=name, max_tokens=6 + at, seed=at))
        together.turn(at % 2)
    together.finish()
    for at, (name, request) in enumerate(zip(names, mixed, strict=True)):
        alone = make_desk()
        if name:
            alone.runner.load(name, adapters / name)
        single = alone.ask(request.prompt_ids, adapter=name, max_tokens=6 + at, seed=at)
        alone.finish()
        assert together.tokens(request) == alone.tokens(single)
        assert together.logprobs(request) == pytest.approx(alone.logprobs(single), abs=1e-4)
    base, one = (together.logprobs(mixed[at]) for at in (0, 1))
    assert base[:3] != pytest.approx(one[:3], abs=1e-3)  # the adapters do change the model


def test_rows_of_one_adapter_are_neighbors(make_desk, adapters):
    desk = make_desk()
    for name in ("one", "two"):
        desk.runner.load(name, adapters / name)
    for at, name in enumerate(("two", "one", "", "two", "one", "")):
        desk.ask(prompt(at, 10), adapter=name, max_tokens=30 - at)
        desk.turn()
    order = [seat.adapter for seat in desk.scheduler.rows]
    assert order == ["", "", "one", "one", "two", "two"]
    assert [seat.slot for seat in desk.scheduler.rows] == list(range(6))


def test_prefixes_are_not_shared_between_adapters(make_desk, adapters):
    desk = make_desk()
    desk.runner.load("one", adapters / "one")
    desk.ask(prompt(0, 40), max_tokens=1)
    desk.finish()
    desk.ask(prompt(0, 40), adapter="one", max_tokens=1)
    desk.finish()
    assert desk.scheduler.reused_tokens == 0


def test_an_adapter_is_unloaded_when_its_last_row_is_done_and_its_prefixes_go_with_it(make_desk, adapters):
    desk = make_desk()
    desk.runner.load("one", adapters / "one")
    running = desk.ask(prompt(0, 20), adapter="one", max_tokens=5)
    desk.turn()
    desk.scheduler.unload("one")
    desk.turn()
    assert "one" in desk.runner.lora.loaded
    desk.finish()
    assert len(desk.tokens(running)) == 5
    assert len(desk.scheduler.store) == 1
    desk.turn()
    assert "one" not in desk.runner.lora.loaded
    assert len(desk.scheduler.store) == 0


def test_a_request_for_an_adapter_that_went_meanwhile_fails_and_is_not_answered_by_the_base(desk):
    request = desk.ask(prompt(0, 10), adapter="gone", max_tokens=3)
    desk.turn()
    assert [type(event) for r, event in desk.events if r is request] == [Failed]


def test_a_longer_queue_waits_for_rows(make_desk):
    desk = make_desk(max_rows=2)
    asked = [desk.ask(prompt(at, 10), max_tokens=3) for at in range(5)]
    desk.turn()
    assert (len(desk.scheduler.rows), len(desk.scheduler.waiting)) == (2, 3)
    desk.finish()
    assert [len(desk.tokens(request)) for request in asked] == [3] * 5


def test_a_cancelled_request_frees_its_row(make_desk):
    desk = make_desk(max_rows=1)
    first = desk.ask(prompt(0, 10), max_tokens=100)
    second = desk.ask(prompt(1, 10), max_tokens=2)
    desk.turn(3)
    first.cancelled = True
    desk.finish()
    assert len(desk.tokens(second)) == 2
    assert not any(isinstance(event, Done) and request is first for request, event in desk.events)


def test_scores_of_a_prompt_are_those_of_a_full_forward(make_desk, reference, monkeypatch):
    monkeypatch.setattr("nightschool.engine.runner.SCORE_TOKENS", 16)  # 50 tokens take several chunks
    desk = make_desk()
    asked = [desk.ask(prompt(at, length), max_tokens=1, score=True) for at, length in enumerate((50, 48, 3, 30))]
    desk.finish()
    for request in asked:
        expected = reference_logprobs(reference, request.prompt_ids, 1)
        assert list(desk.done(request).prompt_scores) == pytest.approx(expected, abs=1e-4)


def test_stop_ids_and_stop_strings_end_a_reply(desk):
    free = desk.ask(prompt(0, 12), temperature=0, max_tokens=30)
    desk.finish()
    tokens = desk.tokens(free)
    text = desk.runner.base.renderer.tokenizer.decode(tokens, skip_special_tokens=True)
    mark = text[8:10]
    stopped = desk.ask(prompt(0, 12), temperature=0, max_tokens=30, stop=("not there", mark))
    desk.finish()
    done = desk.done(stopped)
    assert (done.reason, done.cut) == ("stop", text.find(mark))
    assert [t.id for t in done.tokens] == tokens[: len(done.tokens)]  # those of the stop string included
    desk.scheduler._stop_ids = frozenset({tokens[3]})
    ended = desk.ask(prompt(0, 12), temperature=0, max_tokens=30, ignore_eos=False)
    desk.finish()
    assert desk.tokens(ended) == tokens[: tokens.index(tokens[3]) + 1]
    assert desk.done(ended).reason == "stop"


def test_each_token_of_a_stream_is_delivered_once(desk):
    request = desk.ask(prompt(0, 12), max_tokens=9, n=2)
    desk.finish()
    for choice in range(2):
        steps = [e.token.id for r, e in desk.events if r is request and isinstance(e, Step) and e.choice == choice]
        assert steps == desk.tokens(request, choice)


def test_a_step_that_raises_fails_its_requests_and_the_next_one_works(desk, monkeypatch):
    asked = [desk.ask(prompt(0, 12), max_tokens=5), desk.ask(prompt(1, 12), max_tokens=5)]
    with monkeypatch.context() as patch:
        patch.setattr(desk.runner, "decode", lambda rows: 1 / 0)
        desk.turn()
    assert [type(event) for request, event in desk.events if request in asked] == [Failed, Failed]
    after = desk.ask(prompt(0, 12), max_tokens=5)
    desk.finish()
    assert len(desk.tokens(after)) == 5
