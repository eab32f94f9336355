"""Training on this machine: a frozen base in its own number format, a float32 adapter, plain Adam."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nightschool.errors import InputError, RefusedError
from nightschool.models.base import BaseModel
from nightschool.models.lora import LoraConfig, LoraModel, write_adapter
from nightschool.objectives.loss import LOGPROBS, NORMALIZERS, REPLIES, TOP, VALUES, Terms, couples, outputs_of
from nightschool.releases.manifest import template_digest, tokenizer_digest
from nightschool.training import attention
from nightschool.training.adam import Adam
from nightschool.training.backend import AdamConfig, Drawn, Identity, LossReport, NotFiniteError, StepReport
from nightschool.training.bodies import Body
from nightschool.training.critic import CRITIC, MOMENTS, Critic
from nightschool.training.drawing import Cached, Wish, draw
from nightschool.training.limits import KEEP_BYTES, TOKEN_BUDGET
from nightschool.training.logprobs import Head, likeliest, normalizers, target_logprobs, top_logprobs
from nightschool.training.losses.mixing import TOP_IDS, count, total_loss
from nightschool.training.packing import Pack
from nightschool.types import Json, Sample

POLICY = "policy"

_Scorer = Callable[[Pack, Sequence[Sample], Sequence[Sequence[bool]]], Tensor]


class LocalBackend:
    """The backend protocol on one device. See `training.backend.Backend`.

    The base model's network is changed in place (its linear layers gain adapters), so one base belongs to
    one backend; `open` may be called again and again.
    """

    outputs = frozenset({LOGPROBS, VALUES, TOP, NORMALIZERS, REPLIES})

    def __init__(self, base: BaseModel, config: LoraConfig, token_budget: int = TOKEN_BUDGET, seed: int = 0) -> None:
        self.base = base
        self.config = config
        self.fresh_config = config
        self.token_budget = token_budget
        self.seed = seed
        self.head = _plain_head(base.network)
        self.tiles = Head(self.head)
        attention.register()
        self.lora = LoraModel(base.network, config.targets)
        self.body = Body.of(base, self.lora, KEEP_BYTES)
        self.adam: Adam | None = None
        self.critic: Critic | None = None
        self.last_step: StepReport | None = None

    @property
    def identity(self) -> Identity:
        base = self.base
        return Identity(
            base.digest, tokenizer_digest(base.folder), template_digest(base.renderer), tuple(self.config.targets)
        )

    def open(self, parent: Path | None) -> None:
        if POLICY in self.lora.loaded:
            self.lora.unload(POLICY)
        if self.critic is not None:
            self.critic.close()
        self.critic = None
        if parent is None:
            self.config = self.fresh_config
            self.lora.create(POLICY, self.config, seed=self.seed)
        else:
            self.config = self.lora.load(POLICY, parent)
            if (parent / CRITIC).exists():
                self.critic = Critic.load(self.lora, parent / CRITIC, self.head)
        self.adam = Adam(self.lora.parameters(POLICY))
        self.last_step = None

    def forward_backward(self, samples: Sequence[Sample], terms: Terms) -> LossReport:
        """See the protocol. A coupled loss of several packs costs one more forward: its gradient with respect to
        the log-probabilities is taken over the whole batch first, and then carried through pack by pack."""
        totals = count(samples)
        packed = self._packs(samples)
        slopes = self._slopes(samples, terms) if couples(terms) and len(packed) > 1 else None
        wanted = outputs_of(terms)
        total = 0.0 if slopes is None else slopes.loss
        logprobs: list[tuple[float | None, ...]] = [()] * len(samples)
        for one in packed:
            chosen = [samples[row] for row in one.rows]
            masks = [sample.loss_mask for sample in chosen]
            found = self._outputs(one, chosen, masks, wanted)
            if slopes is None:
                share = total_loss(terms, chosen, found, totals)
                total += share.item()
            else:
                share = slopes.share(one.rows, found)
            self._require_finite(total, len(samples))
            if share.requires_grad:
                share.backward()
            _scatter(logprobs, one, found[LOGPROBS], masks)
        return LossReport(total, sum(one.num_tokens for one in packed), tuple(logprobs))

    @torch.no_grad()
    def forward(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        return self._all(samples, self._score)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        return self._all(samples, self._judge)

    @torch.no_grad()
    def top(self, samples: Sequence[Sample], k: int) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(samples)
        for one in self._packs(samples):
            chosen = [samples[row] for row in one.rows]
            masks = [sample.completion_mask for sample in chosen]
            targets = _Targets.of(one, chosen, masks)
            parents = torch.from_numpy(targets.parents).to(self.base.device)
            ids = likeliest(self.body.hidden(one, POLICY)[parents], self.head, k).cpu().numpy()[targets.gather]
            _spread(found, one, ids.astype(np.int32), masks, -1)
        return found

    @torch.no_grad()
    def forward_top(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(samples)
        for one in self._packs(samples):
            chosen = [samples[row] for row in one.rows]
            masks = [sample.completion_mask for sample in chosen]
            scored = self._of_top(self.body.hidden(one, POLICY), _Targets.of(one, chosen, masks), chosen, masks)
            _spread(found, one, scored.cpu().numpy(), masks, np.nan)
        return found

    def draw(self, prompts: Sequence[Sequence[int]], longest: int, seed: int) -> list[Drawn]:
        wish = Wish(longest, seed, self.base.renderer.end_id)
        most = max((len(prompt) for prompt in prompts), default=0) + longest
        follow = (lambda: Cached(self.base, self._route)) if self.body.fits(most) else (lambda: self._follow)
        return draw(prompts, follow, wish)

    def optim_step(self, optimizer: AdamConfig, step_id: int) -> StepReport:
        assert self.adam is not None, "open() comes first"
        if self.last_step is not None and step_id <= self.last_step.step_id:
            self._drop_gradient()
            return StepReport(step_id, self.last_step.grad_norm, self.last_step.clipped, applied=False)
        norm = self.adam.norm()
        critics = None if self.critic is None else self.critic.adam.norm()
        if norm is None:
            raise InputError("There is no gradient to apply.", "No forward_backward came before this step.", "")
        if not math.isfinite(norm + (critics or 0.0)):
            self._drop_gradient()
            raise NotFiniteError(
                "The gradient is not a finite number.",
                f"Its norm is {norm} at step {step_id}, the critic's {critics}; no step was taken.",
                "Lower the learning rate, or start again from the last checkpoint.",
            )
        clipped = self.adam.step(optimizer, norm)
        if self.critic is not None and critics is not None:
            self.critic.step(optimizer, critics)
        self.last_step = StepReport(step_id, norm, clipped, applied=True)
        return self.last_step

    def save_adapter(self, folder: Path) -> None:
        write_adapter(folder, self.config, self.lora.tensors(POLICY), self.base.name)

    def save_weights(self, folder: Path) -> None:
        self.save_adapter(folder)
        if self.critic is not None:
            self.critic.save(folder / CRITIC, self.base.name)

    def save_state(self, folder: Path) -> None:
        assert self.adam is not None, "open() comes first"
        staging = folder.with_name(folder.name + ".part")
        shutil.rmtree(staging, ignore_errors=True)
        self.save_weights(staging)
        self.adam.save(staging / MOMENTS)
        saved: Json = {"norms": self.adam.norms, "last_step": None}
        if self.critic is not None:
            self.critic.adam.save(staging / CRITIC / MOMENTS)
            saved["critic_norms"] = self.critic.adam.norms
        if self.last_step is not None:
            saved["last_step"] = {k: getattr(self.last_step, k) for k in StepReport.__dataclass_fields__}
        (staging / "state.json").write_text(json.dumps(saved) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)

    def load_state(self, folder: Path) -> None:
        self.open(folder)
        saved = json.loads((folder / "state.json").read_text())
        assert self.adam is not None
        self.adam.load(folder / MOMENTS, saved["norms"])
        if self.critic is not None:
            self.critic.adam.load(folder / CRITIC / MOMENTS, saved["critic_norms"])
        self.last_step = StepReport(**saved["last_step"]) if saved["last_step"] else None

    def _all(self, samples: Sequence[Sample], scorer: _Scorer) -> list[tuple[float | None, ...]]:
        """What `scorer` says of every completion token, pack by pack."""
        found: list[tuple[float | None, ...]] = [()] * len(samples)
        for one in self._packs(samples):
            chosen = [samples[row] for row in one.rows]
            masks = [sample.completion_mask for sample in chosen]
            _scatter(found, one, scorer(one, chosen, masks), masks)
        return found

    def _slopes(self, samples: Sequence[Sample], terms: Terms) -> _Slopes:
        """The loss of the whole batch, and its gradient with respect to what the models say of each loss token."""
        lengths, wanted = [sum(sample.loss_mask) for sample in samples], outputs_of(terms)
        scorers = {VALUES: self.values, TOP: self.forward_top, NORMALIZERS: self._normalizers, LOGPROBS: self.forward}
        leaves = {
            name: self._leaf(samples, score(samples)) for name, score in scorers.items() if name in {*wanted, LOGPROBS}
        }
        loss = total_loss(terms, samples, leaves, count(samples))
        if loss.requires_grad:
            loss.backward()
        found = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}
        return _Slopes(loss.item(), {name: gradient.split(lengths) for name, gradient in found.items()})

    def _leaf(self, samples: Sequence[Sample], rows: Sequence[Any]) -> Tensor:
        """What the rows, (T,) or (T, K), say of the loss tokens, flat, to take a gradient by."""
        chosen = [
            value
            for sample, row in zip(samples, rows, strict=True)
            for value, used in zip(row, sample.loss_mask, strict=True)
            if used
        ]
        return torch.tensor(np.array(chosen, dtype=np.float32), device=self.base.device, requires_grad=True)

    def _require_finite(self, loss: float, num_samples: int) -> None:
        if math.isfinite(loss):
            return
        self._drop_gradient()
        raise NotFiniteError(
            "The loss is not a finite number.",
            f"A batch of {num_samples} samples gave {loss}; no step was taken.",
            "Lower the learning rate, or start again from the last checkpoint.",
        )

    def _route(self, num_rows: int) -> None:
        self.lora.routing.spans = [(POLICY, 0, num_rows)]

    def _follow(self, rows: list[list[int]]) -> Tensor:
        """Logits (B, V) of what follows whole rows, for networks whose layers keep no cache that rows could share."""
        found = [torch.empty(0)] * len(rows)
        for one in self.body.packs(rows, self.token_budget):
            hidden = self.body.hidden(one, POLICY)
            for row, path in zip(one.rows, one.places, strict=True):
                found[row] = self.head(hidden[int(path[-1])])
        return torch.stack(found)

    def _packs(self, samples: Sequence[Sample]) -> list[Pack]:
        return self.body.packs([sample.token_ids for sample in samples], self.token_budget)

    def _drop_gradient(self) -> None:
        assert self.adam is not None
        self.adam.drop()
        if self.critic is not None:
            self.critic.adam.drop()

    @torch.no_grad()
    def _normalizers(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        return self._all(samples, self._normalize)

    def _outputs(
        self, one: Pack, samples: Sequence[Sample], masks: Sequence[Sequence[bool]], wanted: Container[str]
    ) -> dict[str, Tensor]:
        """What losses read of the models, by name: of the masked tokens of a pack's samples, flat in their order."""
        found = {VALUES: self._judge(one, samples, masks)} if VALUES in wanted else {}
        hidden, targets = self.body.hidden(one, POLICY), _Targets.of(one, samples, masks)
        found[LOGPROBS] = self._of_targets(hidden, targets)
        if TOP in wanted and any(TOP_IDS in sample.token_annotations for sample in samples):
            found[TOP] = self._of_top(hidden, targets, samples, masks)
        if NORMALIZERS in wanted:
            found[NORMALIZERS] = self._of_states(hidden, targets)
        return found

    def _normalize(self, one: Pack, samples: Sequence[Sample], masks: Sequence[Sequence[bool]]) -> Tensor:
        return self._of_states(self.body.hidden(one, POLICY), _Targets.of(one, samples, masks))

    def _score(self, one: Pack, samples: Sequence[Sample], masks: Sequence[Sequence[bool]]) -> Tensor:
        """Log-probabilities (N,) of the masked tokens of a pack's samples, flat in their order; a token shared by
        samples is scored once."""
        return self._of_targets(self.body.hidden(one, POLICY), _Targets.of(one, samples, masks))

    def _of_targets(self, hidden: Tensor, targets: _Targets) -> Tensor:
        device = self.base.device
        unique = target_logprobs(
            hidden[torch.from_numpy(targets.parents).to(device)],
            self.tiles,
            torch.from_numpy(targets.token_ids).to(device),
            torch.from_numpy(targets.temperatures).to(device),
        )
        return unique[torch.from_numpy(targets.gather).to(device)]

    def _of_states(self, hidden: Tensor, targets: _Targets) -> Tensor:
        """log sum exp of the logits (N,) in the states before the masked tokens."""
        device = self.base.device
        unique = normalizers(
            hidden[torch.from_numpy(targets.parents).to(device)],
            self.head,
            torch.from_numpy(targets.temperatures).to(device),
        )
        return unique[torch.from_numpy(targets.gather).to(device)]

    def _of_top(
        self, hidden: Tensor, targets: _Targets, samples: Sequence[Sample], masks: Sequence[Sequence[bool]]
    ) -> Tensor:
        """Log-probabilities (N, K) of the tokens that samples name for the places of their masked tokens; of those that
        name none, for losses that do not ask, some token's."""
        device = self.base.device
        k = max(s.token_annotations[TOP_IDS].shape[1] for s in samples if TOP_IDS in s.token_annotations)
        none = np.zeros((max(map(len, masks)), k), dtype=np.int32)
        named = [
            s.token_annotations.get(TOP_IDS, none[: len(wanted)])[list(wanted)]
            for s, wanted in zip(samples, masks, strict=True)
        ]
        return top_logprobs(
            hidden[torch.from_numpy(targets.parents[targets.gather]).to(device)],
            self.head,
            torch.from_numpy(np.concatenate(named).astype(np.int64)).to(device),
            torch.from_numpy(targets.temperatures[targets.gather]).to(device),
        )

    def _judge(self, one: Pack, samples: Sequence[Sample], masks: Sequence[Sequence[bool]]) -> Tensor:
        """The critic's values (N,) of the states before the masked tokens; the first call makes a critic."""
        if self.critic is None:
            self.critic = Critic.fresh(self.lora, self.config, self.head, self.seed)
        targets = _Targets.of(one, samples, masks)
        nodes = torch.from_numpy(targets.parents[targets.gather]).to(self.base.device)
        return self.critic.values(self.body.hidden(one, CRITIC)[nodes])


@dataclass(frozen=True, slots=True)
class _Slopes:
    """A batch's loss, and per output and sample its gradient with respect to the loss tokens' values."""

    loss: float
    of_outputs: Mapping[str, Sequence[Tensor]]

    def share(self, rows: Sequence[int], outputs: Mapping[str, Tensor]) -> Tensor:
        """What has the batch's gradient, for outputs computed again on some rows."""
        parts = [(torch.cat([self.of_outputs[name][row] for row in rows]) * out).sum() for name, out in outputs.items()]
        return torch.stack(parts).sum()


@dataclass(frozen=True, slots=True)
class _Targets:
    """What to score: unique (node, temperature) pairs, and for each scored token the pair it is.

    Shapes: U unique pairs (`parents`, `token_ids`, `temperatures`), N scored tokens (`gather`).
    """

    parents: np.ndarray
    token_ids: np.ndarray
    temperatures: np.ndarray
    gather: np.ndarray

    @staticmethod
    def of(one: Pack, samples: Sequence[Sample], masks: Sequence[Sequence[bool]]) -> _Targets:
        nodes: list[np.ndarray] = []
        temperatures: list[np.ndarray] = []
        for sample, wanted, path in zip(samples, masks, one.places, strict=True):
            if len(wanted) != len(sample.token_ids) or wanted[0]:
                raise InputError(
                    f"Sample {sample.id} has a mask that does not fit.",
                    "It must cover every token, and the first token has nothing to predict it from.",
                    "Correct its masks.",
                )
            chosen = path[np.asarray(wanted, dtype=bool)]
            nodes.append(chosen)
            temperatures.append(np.full(len(chosen), sample.annotations.get("temperature", 1.0)))
        keys = np.stack([np.concatenate(temperatures), np.concatenate(nodes)])
        unique, gather = np.unique(keys, axis=1, return_inverse=True)
        unique_nodes = unique[1].astype(np.int64)
        return _Targets(
            one.parents[unique_nodes],
            one.token_ids[unique_nodes],
            unique[0].astype(np.float32),
            gather.reshape(-1),
        )


def _scatter(
    out: list[tuple[float | None, ...]],
    one: Pack,
    scored: Tensor,
    masks: Sequence[Sequence[bool]],
) -> None:
    """Put scored values back where their tokens stand, one tuple per sample."""
    values = iter(scored.tolist())
    for row, wanted in zip(one.rows, masks, strict=True):
        out[row] = tuple(next(values) if used else None for used in wanted)


def _spread(
    out: list[np.ndarray], one: Pack, values: np.ndarray, masks: Sequence[Sequence[bool]], missing: float
) -> None:
    """As `_scatter`, of rows (N, K): one array (T, K) per sample."""
    at = 0
    for row, wanted in zip(one.rows, masks, strict=True):
        out[row] = np.full((len(wanted), values.shape[1]), missing, dtype=values.dtype)
        out[row][list(wanted)] = values[at : at + sum(wanted)]
        at += sum(wanted)


def _plain_head(network: nn.Module) -> nn.Linear:
    """The output layer, if logits are exactly what it computes.

    Raises:
        RefusedError: the model scales or caps its logits, so log-probabilities would not be the engine's.
    """
    head = cast(Any, network).get_output_embeddings()
    config = cast(Any, network).config
    odd = [k for k in ("final_logit_softcapping", "logits_scaling", "logit_scale") if getattr(config, k, None)]
    if odd or not isinstance(head, nn.Linear):
        raise RefusedError(
            "This model cannot be trained here.",
            f"Its logits are not a plain linear layer ({', '.join(odd) or type(head).__name__}).",
            "nightschool models list",
        )
    return head
