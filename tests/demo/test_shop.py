import json
from random import Random

import pytest

from nightschool.demo.customers import FLIP_RATE, PHRASES, draw_crowd, react
from nightschool.demo.handbook import EMPTY_REPLY, HANDS_OFF, WRONG_TOOL_RATE, write_handbook
from nightschool.demo.shop import Shop


@pytest.fixture
def shop():
    shop = Shop()
    shop.place_order("8812", Random(1))
    yield shop
    shop.close()


def news(shop: Shop, tool: str) -> str:
    return next(iter(json.loads(shop.call("s", tool, '{"order": "8812"}')).values()))


@pytest.mark.parametrize("wanted", list(PHRASES))
def test_a_wish_is_fulfilled_by_the_act_and_its_news(shop: Shop, wanted: str):
    told = news(shop, wanted)
    assert not shop.fulfilled("s", "8812", wanted)  # done, but nobody told the customer
    shop.reply("s", f"It is {told}.")
    assert shop.fulfilled("s", "8812", wanted)


def test_the_wrong_act_is_not_made_good_by_talk(shop: Shop):
    shop.reply("s", f"It arrives on {news(shop, 'track_order')}.")
    news(shop, "refund_order")
    assert not shop.fulfilled("s", "8812", "track_order")  # refunded by mistake: the order is no longer on its way


def test_bad_calls_answer_with_errors_and_change_nothing(shop: Shop):
    for name, arguments in (("track_order", "nonsense"), ("track_order", '["8812"]'), ("fly", '{"order": "8812"}')):
        assert "error" in json.loads(shop.call("s", name, arguments))
    assert "error" in json.loads(shop.call("s", "track_order", '{"order": "1"}'))
    assert [ok for _, _, ok in shop.calls("s")] == [False] * 4


def test_held_out_phrasings_are_never_heard_by_day():
    by_day = {phrase for heard, _ in PHRASES.values() for phrase in heard}
    held_out = {phrase for _, kept in PHRASES.values() for phrase in kept}
    assert not by_day & held_out
    crowd = draw_crowd("x", 300, Random(3))
    assert not any(customer.held_out for customer in crowd)
    assert len({customer.order for customer in crowd}) == 300


def test_feedback_is_partial_and_not_always_right():
    reactions = [react(True, Random(seed)) for seed in range(4000)]
    thumbs = [reaction.thumb for reaction in reactions if reaction.thumb is not None]
    # 60 % of 4,000 leave a thumb (standard error 0.8 points); 5 % of those are wrong (0.4 points)
    assert abs(len(thumbs) / 4000 - 0.60) < 0.03
    assert abs(thumbs.count(False) / len(thumbs) - FLIP_RATE) < 0.02
    assert any(reaction.thumb is None and reaction.text is None for reaction in reactions)


def test_the_handbook_is_wrong_at_its_stated_rates():
    rows = write_handbook(2000, seed=5)
    replies = [row["messages"][-1]["content"] for row in rows]
    useless = sum(reply in (HANDS_OFF, EMPTY_REPLY) for reply in replies) / len(rows)
    assert abs(useless - (0.34)) < 0.04  # 17 % hand off, 17 % say nothing
    wanted = {phrase: tool for tool, (heard, _) in PHRASES.items() for phrase in heard}
    wrong = 0
    for row in rows:
        call = row["messages"][2]["tool_calls"][0]["function"]
        order = json.loads(call["arguments"])["order"]
        wrong += call["name"] != wanted[row["messages"][1]["content"].replace(order, "{n}")]
    assert abs(wrong / len(rows) - WRONG_TOOL_RATE) < 0.04
