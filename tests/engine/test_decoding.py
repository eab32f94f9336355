"""Attention over a shared prefix, and projections computed together: both must change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nightschool.engine import decoding
from nightschool.engine.decoding import Attention, Group, Prefix, looks_of
from nightschool.engine.projections import project
from nightschool.engine.runner import Row, Runner, families, shared_prefix
from nightschool.engine.sampling import Sampling
from nightschool.models.attention import additive, grouped_attention
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig, LoraModel
from nightschool.models.products import can_pack, join, multiply, pack

ROWS, HEADS, KV_HEADS, WIDTH, SLOTS = 6, 4, 2, 16, 70


@pytest.fixture(autouse=True)
def small_prompts_pay(monkeypatch):
    monkeypatch.setattr(decoding, "WORTH", 256)


@pytest.fixture
def dice() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_groups_with_shared_prefixes_give_what_each_row_gives_alone(dice):
    query = torch.randn(ROWS, 1, HEADS, WIDTH, generator=dice)
    keys, values = (torch.randn(ROWS, KV_HEADS, SLOTS, WIDTH, generator=dice) for _ in range(2))
    for tensor in (keys, values):
        tensor[:3, :, :20] = tensor[0, :, :20]  # rows 0-2 share 20 positions, rows 4-5 share 7
        tensor[4:, :, :7] = tensor[4, :, :7]
    positions = torch.tensor([24, 20, 39, 2, 8, 29])[:, None]
    mask = additive(torch.arange(SLOTS) <= positions[:, None, None], torch.float32)
    expected, _ = grouped_attention(nn.Module(), query.transpose(1, 2), keys, values, mask, 0.3)
    of_first, of_second = (
        Prefix(keys[row, None, :, :length].mT, values[row, None, :, :length]) for row, length in ((0, 20), (4, 7))
    )
    groups = (Group(0, 3, 20, 40, of_first), Group(3, 4, 0, 3), Group(4, 6, 7, 30, of_second))
    looks = looks_of(groups, positions, SLOTS, torch.float32)
    attend = Attention(0.3)
    found = attend(0, query, keys, values, looks)
    assert found.shape == (ROWS, 1, HEADS * WIDTH)
    assert (found - expected.flatten(2)).abs().max() < 1e-5
    keys[1, :, 5] += 1  # a row's own copy of the shared part is not read: that is what saves the time
    assert torch.equal(attend(0, query, keys, values, looks), found)


def test_several_new_tokens_of_a_row_see_each_other_in_order(dice):
    query = torch.randn(2, 5, HEADS, WIDTH, generator=dice)
    keys, values = (torch.randn(2, KV_HEADS, SLOTS, WIDTH, generator=dice) for _ in range(2))
    positions = torch.tensor([[30, 31, 32, 33, 34], [2, 3, 4, 4, 4]])  # the second row is padded
    mask = additive(torch.arange(SLOTS) <= positions[:, None, :, None], torch.float32)
    expected, _ = grouped_attention(nn.Module(), query.transpose(1, 2), keys, values, mask, 0.3)
    looks = looks_of((Group(0, 2, 0, 35),), positions, SLOTS, torch.float32)
    assert (Attention(0.3)(0, query, keys, values, looks) - expected.flatten(2)).abs().max() < 1e-5


def test_the_scheduler_shares_a_long_common_prompt_and_scores_stay_right(desk, reference, monkeypatch):
    used: list[list[Group]] = []
    groups = desk.runner._groups
    monkeypatch.setattr(desk.runner, "_groups", lambda rows, counts: used.append(groups(rows, counts)) or used[-1])
    shared = [3 + at % 200 for at in range(70)]
    asked = [desk.ask([*shared, 10 + at, 20], max_tokens=4 + at, seed=at) for at in range(6)]
    desk.finish()
    # Rows share all 70 prompt tokens, in whole strides 64; (6 - 1) * 64 = 320 >= 256 positions need not be read again.
    assert [Group(0, 6, 64, 72)] in used
    assert used[-1] == [Group(0, 1, 0, 80)]  # a single row shares with nobody; it sees 72 + 9 - 1
    for request in asked:
        ids = request.prompt_ids + desk.tokens(request)
        logits = reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        expected = [logits[at - 1, ids[at]].item() for at in range(72, len(ids))]
        assert desk.logprobs(request) == pytest.approx(expected, abs=1e-4)


def test_rows_that_begin_alike_stand_together_and_one_that_does_not_spoils_nothing(desk, reference):
    first, second = ([3 + (at * step) % 270 for at in range(140)] for step in (7, 11))
    asked = []
    for at, shared in enumerate((first, second, [9, 8, 7], first, second, first, [5], second)):
        asked.append(desk.ask([*shared, 10 + at, 20], max_tokens=12, seed=at))
        desk.turn(at % 2)
    desk.turn()
    heads = [seat.head for seat in desk.scheduler.rows]
    assert len(heads) == 8
    assert heads.index(heads[-1]) == 5  # the last three begin alike, the three before them too
    assert heads.index(heads[4]) == 2
    lengths = [group.length for group in desk.runner._groups(list(desk.scheduler.rows), np.ones(8, int))]
    assert lengths == [0, 128, 128]  # of 140; (3 - 1) * 128 >= 256
    desk.finish()
    for request in asked:
        ids = request.prompt_ids + desk.tokens(request)
        logits = reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        start = len(request.prompt_ids)
        expected = [logits[at - 1, ids[at]].item() for at in range(start, len(ids))]
        assert desk.logprobs(request) == pytest.approx(expected, abs=1e-4)


def row_of(slot: int, prompt: list[int], adapter: str = "") -> Row:
    return Row(adapter, [*prompt, 5], np.array(prompt, np.int32), Sampling(), slot, computed=len(prompt))


def test_families_are_neighbors_of_one_adapter_and_one_beginning():
    long, other = list(range(200)), list(range(200, 400))
    prompts = [("", long), ("", long), ("", [1]), ("", [2]), ("a", [2]), ("a", other), ("a", other), ("b", other)]
    rows = [row_of(slot, prompt, adapter) for slot, (adapter, prompt) in enumerate(prompts)]
    assert families(rows) == [(0, 2), (2, 5), (5, 7), (7, 8)]
    assert families([]) == []
    assert (
        shared_prefix([row_of(0, long), row_of(1, [*long[:150], 7]), row_of(2, long)]) == 128
    )  # of 150; 2 * 128 >= 256
    assert shared_prefix([row_of(0, long), row_of(1, [*long[:120], 7]), row_of(2, long)]) == 0  # 2 * 96 < 256
    assert shared_prefix([row_of(0, long, "a"), row_of(1, long, "b"), row_of(2, long, "b")]) == 0
    assert shared_prefix([row_of(0, long * 2)]) == 0  # alone: there is nothing to spare
    halfway = row_of(0, long * 2)
    halfway.computed = 300
    assert shared_prefix([halfway, row_of(1, long * 2)]) == 288


@torch.inference_mode()
@pytest.mark.parametrize("targets", [("q_proj", "k_proj", "v_proj", "o_proj"), ("v_proj", "up_proj", "down_proj")])
def test_projections_compute_what_the_layers_did(tiny, targets):
    ids = torch.randint(3, 277, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = additive(torch.ones(9, 9).tril().bool()[None, None], torch.float32)
    lora = LoraModel(load_base(tiny, torch.float32, "cpu").network)
    for seed, name in enumerate(("a", "b")):
        lora.create(name, LoraConfig(rank=3, alpha=5, targets=targets), seed)
        for parameter in lora.parameters(name):
            parameter.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(seed))
    lora.routing.spans = [("a", 0, 1), ("b", 2, 3)]
    expected = lora.model(ids, attention_mask=mask).logits
    projections = project(lora.model, lora)
    assert len(projections) == 2 * 4  # two layers: q k v, o, gate up, down
    for projection in projections:
        projection.add("a")
        projection.add("b")
    assert (lora.model(ids, attention_mask=mask).logits - expected).abs().max() < 1e-4
    for projection in projections:
        projection.drop("a")
    base = lora.model(ids, attention_mask=mask).logits
    assert (base[2] - expected[2]).abs().max() < 1e-4
    assert (base[0] - expected[0]).abs().max() > 1e-2


def test_joined_layers_keep_their_biases(dice):
    one, two = nn.Linear(4, 3), nn.Linear(4, 2)
    x = torch.randn(5, 4, generator=dice)
    assert torch.allclose(join([one, two])(x), torch.cat([one(x), two(x)], -1), atol=1e-6)


def test_packed_products_are_bit_equal(dice):
    weight = torch.randn(96, 64, generator=dice).bfloat16()
    bias = torch.randn(96, generator=dice).bfloat16()
    if not can_pack(weight):
        pytest.skip("this processor or build does not pack bfloat16")
    packed = pack(weight)
    for rows in (1, 5, 33):
        x = torch.randn(rows, 1, 64, generator=dice).bfloat16()
        assert torch.equal(multiply(x, packed, None), nn.functional.linear(x, weight))
        assert torch.allclose(multiply(x, packed, bias), nn.functional.linear(x, weight, bias), atol=0.1)


def test_float32_is_not_packed():
    assert not can_pack(torch.ones(4, 4))


def test_a_bfloat16_engine_agrees_with_a_bfloat16_forward(tiny, adapters):
    """Packed weights, adapters and shared prefixes together, in the format production runs in."""
    from nightschool.engine.scheduler import Done, Request, Scheduler

    events: list = []
    runner = Runner(load_base(tiny, torch.bfloat16, "cpu"), 8, 256)
    runner.load("one", adapters / "one")
    scheduler = Scheduler(runner, events.extend, frozenset(), 0)
    for at in range(6):
        scheduler.submit(Request("one", [*range(3, 90), 100 + at, 5], Sampling(max_tokens=6, seed=at)))
    with torch.inference_mode():
        for _ in range(6):
            scheduler.turn()
    lora = LoraModel(load_base(tiny, torch.float32, "cpu").network)
    lora.load("one", adapters / "one")
    differences = []
    for request, event in events:
        assert isinstance(event, Done)
        ids = request.prompt_ids + [token.id for token in event.tokens]
        lora.routing.spans = [("one", 0, 1)]
        mask = additive(torch.ones(len(ids), len(ids)).tril().bool()[None, None], torch.float32)
        with torch.inference_mode():
            logprobs = lora.model(torch.tensor([ids]), attention_mask=mask).logits[0].log_softmax(-1)
        for at, token in enumerate(event.tokens, start=len(request.prompt_ids)):
            differences.append(token.logprob - logprobs[at - 1, token.id].item())
    assert len(differences) == 36
    assert sum(map(abs, differences)) / 36 < 0.1  # measured 0.02; a wrong adapter or prefix gives more than 1
