"""TRL's own trainers take a step on the files that are written for them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from exported import CALL, MORE, SYSTEM, TOOL, USER, put, say, trained_on, written
from tiny import make_tiny_model

from nightschool.rendering import renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, TargetKind

TYPED = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"t": {}}}}}
TEMPLATE = Path(renderer.__file__).with_name("chatml.jinja")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """`trained(name, format)`: the losses of one step of TRL's trainer of that name on the file of that format."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def train(name: str, format: str, **options: Any) -> list[float]:
        import datasets
        import trl
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        path = tmp_path / f"{format}.jsonl"
        with Store.open(tmp_path / "store.sqlite") as store:
            recorded(store)
            rows = written(store, path, format)
        loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert [row["tools"] for row in loaded] == [row["tools"] for row in rows]
        folder = make_tiny_model(tmp_path / "model")
        ends: dict[str, Any] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **ends)
        tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
        config = getattr(trl, f"{name}Config")(
            output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            save_strategy="no", logging_steps=1, bf16=False, max_length=1024, disable_tqdm=True, **options,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(folder)
        trainer = getattr(trl, f"{name}Trainer")(
            model=model, args=config, train_dataset=loaded, processing_class=tokenizer
        )
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return train


def recorded(store: Store) -> None:
    """Sessions with tools and without, null contents, reused ids, and arguments of the same name of two types."""
    user = trained_on(store)
    for number, arguments in enumerate(('{"t": "2025"}', '{"t": 5}', "no JSON")):
        call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": arguments}}
        reply = {"role": "assistant", "content": None, "tool_calls": [call]}
        seen = [SYSTEM, USER, reply, {"role": "tool", "tool_call_id": "c", "content": "found"}]
        session, at = f"s{number}", 1000.0 + 10 * number
        first = put(store, seen[:2], reply, session, at, user, tools=(TOOL, TYPED))
        again = put(store, seen, {"role": "assistant", "tool_calls": [CALL]}, session, at + 1, user, tools=(TYPED,))
        say(store, session, FeedbackKind.OUTCOME, True, on=TargetKind.SESSION)
        say(store, first, FeedbackKind.THUMB, True)
        say(store, again, FeedbackKind.THUMB, False)
        say(store, again, FeedbackKind.CORRECTION, {"content": "There is none.", "tool_calls": None}, "correction")
    plain = put(store, [MORE], session="plain", at=2000.0, user=user)
    say(store, plain, FeedbackKind.THUMB, True)
    say(store, plain, FeedbackKind.CORRECTION, "Less.", "correction")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TRL and transformers warn of each other
@pytest.mark.parametrize(("name", "format"), [("SFT", "sft"), ("DPO", "preference"), ("KTO", "kto")])
def test_a_step_of_trl(trained, name, format):
    [loss] = trained(name, format)
    assert math.isfinite(loss)
    assert loss > 0
