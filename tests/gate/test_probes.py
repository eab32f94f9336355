import asyncio
import json
import re

import pytest
from fake_engine import serve
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from nightschool.errors import UpstreamError
from nightschool.gate.probes import ANSWER_TOKENS, Probe, accepts, answered_sample, load_probes, run_probes
from nightschool.gate.rule import PROBES
from nightschool.upstream.client import EngineClient

FORBIDDEN = re.compile(
    r"\b(shop|store|order|refund|return|customer|delivery|deliver|parcel|product|price|buy)\w*\b", re.I
)


class TwoPolicies:
    """An engine with two policies: `sure` gives each token -0.5, `unsure` -0.7; `mute` answers nothing right."""

    def __init__(self):
        self.per_token = {"sure": -0.5, "unsure": -0.7, "mute": -0.5}
        self.asked = []
        self.broken = False
        self.answers = {
            "\n".join(m["content"] for m in probe.messages): probe.accept[0] for probe in load_probes() if probe.accept
        }

    def app(self):
        paths = {"/tokenize": self.tokenize, "/v1/completions": self.score, "/v1/chat/completions": self.chat}
        return Starlette(routes=[Route(path, route, methods=["POST"]) for path, route in paths.items()])

    async def tokenize(self, request):
        body = await request.json()
        if "prompt" in body:
            assert body["add_special_tokens"] is False
        else:
            assert body["add_generation_prompt"] is True
        text = body.get("prompt") or "".join(message["content"] for message in body["messages"])
        return JSONResponse({"tokens": list(text.encode())})

    async def score(self, request):
        body = await request.json()
        value = self.per_token[body["model"]]
        scores = [None, *({str(token): {"logprob": value}} for token in body["prompt"][1:])]
        return JSONResponse({"choices": [{"text": "", "prompt_logprobs": scores}]})

    async def chat(self, request):
        body = await request.json()
        self.asked.append(body)
        if self.broken:
            return JSONResponse({"error": {"message": "no"}}, 500)
        right = self.answers["\n".join(message["content"] for message in body["messages"])]
        content = None if body["model"] == "mute" else f"I think: {right.upper()}!"
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": content}}]})


def run(engine, candidate, incumbent, **options):
    async def go(url):
        async with EngineClient(url) as client:
            return await run_probes(client, candidate, incumbent, **options)

    with serve(engine.app()) as url:
        return asyncio.run(go(url))


def test_the_shipped_set():
    probes = load_probes()
    assert (len(probes), len(answered_sample(probes))) == PROBES
    assert len({probe.id for probe in probes}) == len(probes)
    assert len({probe.kind for probe in probes}) == 6
    for probe in probes:
        roles = [message["role"] for message in probe.messages if message["role"] != "system"]
        assert roles in (["user"], ["user", "assistant", "user"])
        assert probe.reference
        text = json.dumps([*probe.messages, probe.reference])
        assert not FORBIDDEN.search(text), text


def test_the_reference_itself_is_acceptable():
    for probe in load_probes():
        assert not probe.accept or accepts(probe, probe.reference), probe.id


def test_the_answered_sample_is_spread_over_kinds_and_fixed():
    sample = answered_sample(load_probes())
    assert sample == answered_sample(load_probes())
    counts = {kind: sum(probe.kind == kind for probe in sample) for kind in {probe.kind for probe in sample}}
    # 24 in turn from six kinds; small talk has 3 items with a checkable answer, the other kinds share its fourth turn
    assert counts["small-talk"] == 3
    assert sorted(counts.values()) == [3, 4, 4, 4, 4, 5]


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It is 12.", True), ("TWELVE apples", True), ("112", False), ("It is 1,2", False), ("", False)],
)
def test_answers_are_matched_as_whole_words(answer, right):
    assert accepts(Probe("a", "k", (), "12", ("12", "twelve")), answer) is right


def test_likelihoods_and_answers_of_both_policies():
    engine = TwoPolicies()
    scored, answered = run(engine, "unsure", "sure")
    assert len(scored.values) == 72
    assert {(round(mine, 9), round(theirs, 9)) for _, mine, theirs in scored.values} == {(-0.7, -0.5)}
    assert [(mine, theirs) for _, mine, theirs in answered.values] == [(1.0, 1.0)] * 24
    assert {body["temperature"] for body in engine.asked} == {0}
    assert {body["max_tokens"] for body in engine.asked} == {ANSWER_TOKENS}


def test_silence_is_a_wrong_answer():
    _, answered = run(TwoPolicies(), "mute", "sure")
    assert {(mine, theirs) for _, mine, theirs in answered.values} == {(0.0, 1.0)}


def test_a_failing_engine_is_nobodys_wrong_answer():
    engine = TwoPolicies()
    engine.broken = True
    with pytest.raises(UpstreamError, match="was not answered"):
        run(engine, "unsure", "sure", probes=load_probes()[:3])
