"""TRL's own losses on the same tokens: value and gradient agree with ours, for a policy and a reference that differ.

Known differences, none of which enters here: TRL makes KTO's mismatched pairs by shifting within a batch, and averages
the means of its ranks; we shift over the dataset once. It warns where KTO's classes are out of balance; we balance
them. Its BCO is that of pairs, without the reward shift, which is put into the reference it is given here; its former
one for single judgements had a running mean for a shift. It has no conservative DPO, and no robust IPO. Beside DPO it
adds the preferred replies' likelihood as a mean over all their tokens, we as a sum over each reply.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_tiny_model
from torch import Tensor

from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.likelihood import dft, sft
from nightschool.training.losses.preference import apo_zero, bco, dpo, ipo, kto

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # TRL and transformers warn of each other

PAIRS = [
    {"prompt": "the order", "chosen": " is on the tool", "rejected": " is"},
    {"prompt": "user", "chosen": " sings", "rejected": " the thing in order"},
    {"prompt": "a tool or the other", "chosen": " the first", "rejected": " in"},
    {"prompt": "in the", "chosen": " ring", "rejected": " user order, the order"},
]
JUDGED = [
    {"prompt": row["prompt"], "completion": row["chosen" if number % 2 else "rejected"], "label": bool(number % 3)}
    for number, row in enumerate(PAIRS)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tuple(make_tiny_model(tmp_path_factory.mktemp(f"model{seed}"), seed) for seed in (1, 2))  # type: ignore[return-value]


@pytest.fixture
def trainer(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def make(name: str, rows: list[dict[str, Any]], **options: Any) -> Any:
        import datasets
        import trl
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        policy, reference = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders)
        ends: dict[str, Any] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folders[0] / "tokenizer.json"), **ends)
        config = getattr(trl, f"{name}Config")(
            output_dir=str(tmp_path), per_device_train_batch_size=4, report_to=[], use_cpu=True, bf16=False, **options
        )
        anchor = {} if name == "SFT" else {"ref_model": reference}
        return getattr(trl, f"{name}Trainer")(
            model=policy,
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            **anchor,
        )

    return make


def batch_of(trainer: Any) -> dict[str, Tensor]:
    return next(iter(trainer.get_train_dataloader()))


def scored(model: Any, batch: dict[str, Tensor], which: str = "") -> tuple[Tensor, Tensor]:
    """Log-probabilities of the completion's tokens by a plain forward, and the row of each."""
    ids = batch[f"{which}input_ids"]
    logits = model(input_ids=ids, attention_mask=batch[f"{which}attention_mask"], use_cache=False).logits
    values = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    used = batch[f"{which}completion_mask"][:, 1:].bool()
    return values[used], used.nonzero()[:, 0]


def ours(trainer: Any, batch: dict[str, Tensor], *which: str, **more: Any) -> TokenBatch:
    """The same tokens as our losses see them, those of `which` parts one after the other."""
    policy, reference, rows = [], [], []
    for number, part in enumerate(which):
        values, row = scored(trainer.model, batch, part)
        with torch.no_grad():
            reference.append(scored(trainer.ref_model, batch, part)[0])
        policy.append(values)
        rows.append(row + number * len(batch["input_ids"]))
    size = len(which) * len(batch["input_ids"])
    weights = more.pop("weights", torch.ones(size))
    given = {"reference_logprobs": torch.cat(reference)}
    return TokenBatch(torch.cat(policy), torch.cat(rows), weights, 0, size, given, **more)


def agree(trainer: Any, batch: dict[str, Tensor], mine: Tensor) -> None:
    """TRL's loss and its gradient are ours."""
    theirs = trainer.compute_loss(trainer.model, dict(batch))
    assert theirs.item() == pytest.approx(mine.item(), rel=1e-5, abs=1e-5)
    weights = [p for p in trainer.model.parameters() if p.requires_grad]
    for one, other in zip(torch.autograd.grad(theirs, weights), torch.autograd.grad(mine, weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * other.abs().max().item() + 1e-8)


def pairs(trainer: Any, batch: dict[str, Tensor]) -> TokenBatch:
    """TRL puts all preferred replies before all others."""
    half = len(batch["input_ids"]) // 2
    notes = {"preferred": torch.tensor([1.0] * half + [0.0] * half)}
    return ours(trainer, batch, "", annotations=notes, groups=torch.arange(half).repeat(2))


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({"loss_type": "sigmoid"}, lambda batch: dpo(batch, 0.1)),
        ({"loss_type": "robust", "label_smoothing": 0.1}, lambda batch: dpo(batch, 0.1, noise=0.1)),
        ({"loss_type": "ipo"}, lambda batch: ipo(batch, 0.1)),
    ],
)
def test_dpo(trainer: Any, options: dict[str, Any], loss: Callable[[TokenBatch], Tensor]) -> None:
    made = trainer("DPO", PAIRS, beta=0.1, **options)
    batch = batch_of(made)
    agree(made, batch, loss(pairs(made, batch)))


def test_bco(trainer: Any) -> None:
    made = trainer("DPO", PAIRS, beta=0.1, loss_type="bco_pair")
    batch = batch_of(made)
    mine = pairs(made, batch)
    mine.annotations["desirable"] = mine.annotations["preferred"]  # type: ignore[index]
    reference = mine.sums(mine.tokens["reference_logprobs"]) + mine.log_ratios().mean().detach()
    batch["ref_chosen_logps"], batch["ref_rejected_logps"] = reference.chunk(2)
    made.precompute_ref_logps = True
    agree(made, batch, 2 * bco(mine, 0.1))  # TRL adds the two sides of a pair, we count each


def judged(trainer: Any, batch: dict[str, Tensor], *which: str) -> TokenBatch:
    label = batch["label"].float()
    size = len(label) * (len(which) - 1)
    notes = {
        "desirable": torch.cat([label, torch.zeros(size)]),
        "mismatched": torch.tensor([0.0] * len(label) + [1.0] * size),
    }
    weights = torch.cat([torch.where(label > 0, 1.0, 1.5), torch.ones(size)])
    return ours(trainer, batch, *which, annotations=notes, weights=weights)


def test_kto(trainer: Any) -> None:
    made = trainer("KTO", JUDGED, beta=0.1, undesirable_weight=1.5)
    batch = batch_of(made)
    agree(made, batch, kto(judged(made, batch, "", "KL_"), 0.1))


def test_apo_zero(trainer: Any) -> None:
    made = trainer("KTO", JUDGED, beta=0.1, undesirable_weight=1.5, loss_type="apo_zero_unpaired")
    batch = batch_of(made)
    agree(made, batch, apo_zero(judged(made, batch, ""), 0.1))


@pytest.mark.parametrize(("name", "loss"), [("nll", sft), ("dft", dft)])
def test_sft(trainer: Any, name: str, loss: Callable[..., Tensor]) -> None:
    made = trainer("SFT", [{"prompt": r["prompt"], "completion": r["chosen"]} for r in PAIRS], loss_type=name)
    batch = batch_of(made)
    batch["completion_mask"] = batch["labels"] != -100
    values, rows = scored(made.model, batch)
    del batch["completion_mask"]
    agree(made, batch, loss(TokenBatch(values, rows, torch.ones(4), len(values), 4), Aggregation.TOKEN_MEAN))
