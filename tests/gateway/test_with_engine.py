"""The gateway in front of the embedded engine itself, with a tiny random model."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import torch
from fake_engine import serve
from tiny import make_tiny_model

from nightschool.engine.server import build_app as build_engine
from nightschool.engine.service import Engine, Settings
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig, LoraModel, write_adapter
from nightschool.releases.adapters import install_adapter
from nightschool.releases.aliases import start
from nightschool.releases.manifest import Manifest, template_digest, tokenizer_digest
from nightschool.types import Fidelity
from nightschool.upstream.client import EngineClient

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Where is my order?"}], "max_tokens": 12, "seed": 5}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def engine_url(tiny, tmp_path):
    (tmp_path / "adapters").mkdir()
    engine = Engine(load_base(tiny, torch.float32, "cpu"), Settings(adapters=tmp_path / "adapters", max_batch=4))
    with serve(build_engine(engine)) as url:
        yield url


def install(gateway, tiny: Path, folder: Path) -> str:
    base = load_base(tiny, torch.float32, "cpu")
    lora = LoraModel(base.network)
    config = LoraConfig(rank=4, alpha=8)
    lora.create("a", config, seed=1)
    for parameter in lora.parameters("a"):
        torch.nn.init.normal_(parameter.data, 0, 0.2)
    write_adapter(folder, config, lora.tensors("a"), "tiny")
    fits = (base.digest, tokenizer_digest(tiny), template_digest(base.renderer))
    manifest = Manifest("shop", *fits, tuple(config.targets), None, None, "1", None)
    return install_adapter(gateway.store, gateway.state, folder, manifest)


def test_recorded_logprobs_are_what_the_engine_scores_again(open_gateway, engine_url):
    gateway = open_gateway(engine_url=engine_url)
    with gateway.client() as client:
        plain = client.chat.completions.with_raw_response.create(**ASK)
        chunks = list(client.chat.completions.create(**ASK, stream=True))
    text = plain.parse().choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    exchange = gateway.recorded(plain.headers["x-nightschool-exchange"])
    streamed = gateway.recorded(chunks[0].id)
    choice = exchange.choices[0]
    assert (exchange.fidelity, streamed.fidelity) == (Fidelity.EXACT, Fidelity.EXACT)
    assert streamed.choices[0].completion_ids == choice.completion_ids
    assert streamed.choices[0].message["content"] == choice.message["content"] == text

    async def score() -> list[float]:
        async with EngineClient(engine_url) as client:
            base = (await client.models())[0]
            return await client.score(base, exchange.prompt_ids or (), choice.completion_ids or ())

    assert asyncio.run(score()) == pytest.approx(choice.behavior_logprobs, abs=1e-4)


def test_a_release_is_loaded_and_answers(open_gateway, engine_url, tiny, tmp_path):
    gateway = open_gateway(engine_url=engine_url)
    before = gateway.chat(ASK)
    digest = install(gateway, tiny, tmp_path / "made")
    start(gateway.store, "shop", digest, "me")
    time.sleep(0.2)  # the age an alias table may have
    with gateway.client() as client:
        reply = client.chat.completions.with_raw_response.create(**ASK)
    assert before[1]["x-nightschool-policy"] == "base"
    assert reply.headers["x-nightschool-policy"] == digest
    exchange = gateway.recorded(reply.headers["x-nightschool-exchange"])
    assert (exchange.policy_version, exchange.fidelity) == (digest, Fidelity.EXACT)
