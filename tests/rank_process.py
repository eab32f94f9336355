"""One of several processes that share a batch: `python rank_process.py RANK RANKS FOLDER`.

Each scores rows of its own under a policy that all have alike. Counts and gradients are summed over the ranks; for a
coupled loss the log-probabilities travel, and each rank carries its share of the whole batch's gradient back.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple
from pathlib import Path

import torch
import torch.distributed as dist
from objective_batches import MADE, made
from torch import Tensor

from nightschool.objectives.loss import LOGPROBS, Terms, couples
from nightschool.training.losses.mixing import Totals, count, total_loss
from nightschool.types import Sample


def policy() -> Tensor:
    """Log-odds of 256 tokens, whatever came before."""
    return torch.randn(256, generator=torch.Generator().manual_seed(3)).requires_grad_()


def scores(weights: Tensor, rows: list[Sample]) -> Tensor:
    used = [t for row in rows for t, yes in zip(row.token_ids, row.loss_mask, strict=True) if yes]
    return weights.log_softmax(0)[used]


def shared(rows: list[Sample], terms: Terms, weights: Tensor, rank: int, num_ranks: int) -> float:
    """Leaves the whole batch's gradient on `weights`, and gives its loss."""
    own = rows[rank::num_ranks]
    own_scores = scores(weights, own)
    counts = torch.tensor(astuple(count(own)[""]))
    dist.all_reduce(counts)
    totals = {"": Totals(*counts.tolist())}
    if couples(terms):
        everyone: list[tuple[list[Sample], Tensor]] = [([], own_scores)] * num_ranks
        dist.all_gather_object(everyone, (own, own_scores.detach()))
        values = torch.cat([part for _, part in everyone]).requires_grad_()
        loss = total_loss(terms, [row for part, _ in everyone for row in part], {LOGPROBS: values}, totals)
        [slopes] = torch.autograd.grad(loss, values)
        (own_scores * slopes.split([len(part) for _, part in everyone])[rank]).sum().backward()
        found = loss.detach() / num_ranks
    else:
        loss = total_loss(terms, own, {LOGPROBS: own_scores}, totals)
        loss.backward()
        found = loss.detach()
    dist.all_reduce(found)
    dist.all_reduce(weights.grad)
    return found.item()


def main(rank: int, num_ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=num_ranks)
    found = {}
    for name in MADE:
        weights = policy()
        loss = shared(*made(name), weights, rank, num_ranks)
        assert weights.grad is not None
        found[name] = [loss, weights.grad.tolist()]
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
