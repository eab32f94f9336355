"""Which forward computes a network's hidden states over a pack, decided by trying.

The network's own attention over each sequence alone is the truth. `Stack` and, failing that, the network's layers with
tree attention are taken if they give the same on a small tree. What can do neither, and what looks back through a
window that is shorter than a sequence, gets its sequences one by one. Recurrent layers would read their siblings, and
in half precision so little of them that no trial tells: they are known by their modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from nightschool.models.base import BaseModel
from nightschool.models.lora import LoraModel
from nightschool.training import attention
from nightschool.training.attention import TreePlan
from nightschool.training.packing import Pack, pack
from nightschool.training.stack import Stack

PROBE = ((6, 6), (6, 12), (0, 9))  # two branches of one trunk and another tree: tokens shared, and of their own
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}  # of a hidden state's length, at the median


class Forward(Protocol):
    """Normalized hidden states (T, hidden) of a pack's nodes, with a gradient for the adapter if one is named."""

    def hidden(self, one: Pack, adapter: str | None) -> Tensor: ...


class Body:
    """A network's layers: `tree` for packs of many sequences, if it has one, and `alone` for one sequence at a time.

    `window`: how far back its attention looks at most, in tokens; `None` without a limit.
    """

    def __init__(self, tree: Forward | None, alone: Forward, window: int | None) -> None:
        self.tree, self.alone, self.window = tree, alone, window

    @classmethod
    def of(cls, base: BaseModel, lora: LoraModel, keep_bytes: int) -> Body:
        """The fastest forward that gives what the network gives."""
        alone = Layers(base, lora, tree=False)
        probe = _probe(base.network.config.vocab_size)
        with torch.no_grad():
            truth = [alone.hidden(one, None) for ids in probe for one in pack([ids])]
        fitting = (one for one in _candidates(base, lora, keep_bytes) if _agrees(one, probe, truth))
        return cls(next(fitting, None), alone, _window(base.network.config))

    def packs(self, sequences: Sequence[Sequence[int]], token_budget: int) -> list[Pack]:
        """What goes through one forward together. See `packing.pack`."""
        short = [row for row, ids in enumerate(sequences) if self.fits(len(ids))]
        found = pack([sequences[row] for row in short], token_budget)
        found = [replace(one, rows=tuple(short[row] for row in one.rows)) for one in found]
        for row, ids in enumerate(sequences):
            if not self.fits(len(ids)):
                found += [replace(one, rows=(row,)) for one in pack([ids])]
        return found

    def hidden(self, one: Pack, adapter: str | None) -> Tensor:
        longest = max(len(path) for path in one.places)
        forward = self.tree if self.tree is not None and self.fits(longest) else self.alone
        return forward.hidden(one, adapter)

    def fits(self, length: int) -> bool:
        """Whether sequences of that many tokens go through a forward together."""
        return self.tree is not None and (self.window is None or length <= self.window)


class Layers:
    """The network's own layers, with tree attention or with its own."""

    def __init__(self, base: BaseModel, lora: LoraModel, tree: bool) -> None:
        self._base, self._lora, self._tree = base, lora, tree
        network = cast(Any, base.network)
        own = "sdpa" if network._supports_sdpa else "eager"
        self._implementation = attention.NAME if tree else own
        self._known = inspect.signature(network.base_model.forward).parameters

    def hidden(self, one: Pack, adapter: str | None) -> Tensor:
        network, device = cast(Any, self._base.network), self._base.device
        network.set_attn_implementation(self._implementation)
        self._lora.routing.spans = [] if adapter is None else [(adapter, 0, 1)]
        inputs = {
            "input_ids": torch.from_numpy(one.token_ids)[None].to(device),
            "position_ids": torch.from_numpy(one.position_ids)[None].to(device),
        }
        given = {name: value for name, value in inputs.items() if name in self._known}
        tree = {"tree": TreePlan.of(one, self._base.dtype, device)} if self._tree else {}
        return network.base_model(**given, **tree, use_cache=False).last_hidden_state[0]


def _candidates(base: BaseModel, lora: LoraModel, keep_bytes: int) -> Iterator[Forward]:
    if (stack := Stack.of(base.network, keep_bytes)) is not None:
        yield stack
    if _attends(base.network.base_model):
        yield Layers(base, lora, tree=True)


def _attends(body: Any) -> bool:
    """Whether every layer mixes tokens by attention, and none by a convolution."""
    layers = getattr(body, "layers", ())
    named = all(any("att" in name for name, _ in layer.named_children()) for layer in layers)
    return len(layers) > 0 and named and not any(isinstance(module, nn.Conv1d) for module in body.modules())


def _probe(vocabulary: int) -> list[list[int]]:
    """Sequences of ordinary tokens; the first ones of a vocabulary are often special, and hardly trained."""
    ids = [vocabulary // 3 + 7 * step % (vocabulary // 3) for step in range(sum(map(sum, PROBE)))]
    return [ids[:shared] + [ids.pop() for _ in range(own)] for shared, own in PROBE]


def _agrees(forward: Forward, probe: list[list[int]], truth: list[Tensor]) -> bool:
    """Whether a forward over the probe's tree gives each sequence but the first, which anything can, as it is alone.

    In half precision the states of two right ways differ by some hundredths of their length; those of a wrong one by
    more than half.
    """
    (one,) = pack(probe)
    try:
        with torch.no_grad():
            found = forward.hidden(one, None).float()
    except (TypeError, RuntimeError, AssertionError):  # layers that know nothing of a tree
        return False
    wrong = []
    for row, path in sorted(zip(one.rows, one.places, strict=True))[1:]:
        own, states = slice(PROBE[row][0], None), truth[row].float()
        distance = (found[torch.from_numpy(path).to(found.device)] - states).norm(dim=-1) / states.norm(dim=-1)
        wrong.append(distance[own].median().item())
    return max(wrong) < CLOSE[truth[0].dtype]


def _window(config: Any) -> int | None:
    """The shortest window of a network's layers, if it has any."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)
