"""SFT: a clerk reads a handbook. Imitate what the assistant says in it, and nobody else's words.

Run: python recipes/sft.py
"""

from __future__ import annotations

from pathlib import Path

import clerk

from nightschool.objectives import sft
from nightschool.objectives.sft import SftRule
from nightschool.training.backend import AdamConfig
from nightschool.types import Sample

BATCH_SIZE, OPTIMIZER = 16, AdamConfig(learning_rate=3e-3)


def run(folder: Path, steps: int = 60, seed: int = 0) -> clerk.Rows:
    """Shares of right replies, before and after `steps` on the handbook."""
    backend = clerk.hire(folder, seed)
    renderer = backend.base.renderer

    # A page of the handbook is a conversation as it should go. The prompt comes from the renderer that also serves
    # the model, so training sees the very tokens that serving will; the reply ends in the end of turn, which has to be
    # learned like any other token. Only the reply's tokens carry a loss.
    handbook = []
    for request in clerk.LIVE:
        prompt = renderer.prompt_ids(request.messages)
        reply = renderer.completion_ids(clerk.REPLY.format(request.desk))
        said = (False,) * len(prompt) + (True,) * len(reply)
        handbook.append(Sample(request.text, (*prompt, *reply), completion_mask=said, loss_mask=said))

    # The objective checks the rows (an empty loss mask would be refused) and names its loss: the mean over all loss
    # tokens of the batch. Samples without a term belong to the one loss there is.
    rule = SftRule()
    rows = sft.annotate(handbook, rule)
    terms = {"": sft.loss(rule)}

    before = clerk.success(backend)
    for step, batch in enumerate(clerk.batches([[row] for row in rows], BATCH_SIZE, steps, seed)):
        report = backend.forward_backward(batch, terms)
        backend.optim_step(OPTIMIZER, step)
        if step % 10 == 0:
            print(f"step {step:3}  loss {report.loss:.3f} nats per token")
    return [("right replies", before, clerk.success(backend))]


if __name__ == "__main__":
    clerk.play(run)
