"""The layers of a Llama as plain calls: what the modules of transformers compute, without the modules.

A decode step is a thousand small operators, and half of its time went on the way to them. Llama, Mistral, Qwen 2
and 3 and what else is built of the same parts take this way; a model that is not keeps transformers' forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nightschool.engine.cache import RowCache
from nightschool.engine.decoding import Attention, Look
from nightschool.engine.projections import Part, Projection

BODY = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm over the last dimension."""

    weight: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    """The parts of one layer. `heads` norms queries and keys head by head, where the model does."""

    before: Norm
    attention: Projection
    heads: tuple[Norm, Norm] | None
    out: Projection
    after: Norm
    wide: Projection
    down: Projection


class Layers:
    """A network's way from ids to hidden states, over the rows that the cache is aimed at."""

    def __init__(self, network: Any, layers: list[Layer], cache: RowCache) -> None:
        body, config = network.base_model, network.config
        self._embed, self._rotary, self._norm = body.embed_tokens, body.rotary_emb, _norm(body.norm)
        self._activate = body.layers[0].mlp.act_fn
        self._attention = Attention(body.layers[0].self_attn.scaling)
        self._layers, self._cache = layers, cache
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads

    def __call__(self, ids: Tensor, positions: Tensor, looks: Sequence[Look]) -> Tensor:
        """Shapes: ids and positions (R, L) -> (R, L, hidden)."""
        x = self._embed(ids)
        cos, sin = self._rotary(x, positions)
        half = cos.shape[-1] // 2
        turn = cos[:, :, None], torch.cat((-sin[..., :half], sin[..., half:]), -1)[:, :, None]
        for index, layer in enumerate(self._layers):
            x += layer.out(self._attend(index, layer, layer.attention(layer.before(x)), turn, looks))
            gate, up = layer.wide(layer.after(x)).chunk(2, -1)
            x += layer.down(self._activate(gate).mul_(up))
        return self._norm(x)

    def _attend(
        self, index: int, layer: Layer, x: Tensor, turn: tuple[Tensor, Tensor], looks: Sequence[Look]
    ) -> Tensor:
        cos, sin = turn
        width, num_heads, num_turned = cos.shape[-1], self._num_heads, self._num_heads + self._num_kv_heads
        parts = x.unflatten(-1, (-1, width))
        straight = parts[:, :, :num_turned]
        if layer.heads is not None:
            of_query, of_key = layer.heads
            straight[:, :, :num_heads] = of_query(straight[:, :, :num_heads])
            straight[:, :, num_heads:] = of_key(straight[:, :, num_heads:])
        torch.addcmul(straight * cos, straight.roll(width // 2, -1), sin, out=straight)
        self._cache.store(index, parts[:, :, num_heads:])
        return self._attention(index, parts[:, :, :num_heads], *self._cache.active(index), looks)


def layers_of(network: Any, cache: RowCache) -> Layers | None:
    """The network's layers if they have the known parts; whether these mean the known thing only a forward tells."""
    body = network.base_model
    if _children(body) != BODY:
        return None
    found = []
    for layer in body.layers:
        if _children(layer) != LAYER or _children(layer.mlp) != MLP:
            return None
        if _children(layer.self_attn) not in (ATTENTION, ATTENTION | HEAD_NORMS):
            return None
        parts = {name: part for each in (layer.self_attn, layer.mlp) for name, part in each.named_children()}
        joined = [_joined(parts, names) for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))]
        attention, wide = joined
        if attention is None or wide is None:
            return None
        heads = (_norm(parts["q_norm"]), _norm(parts["k_norm"])) if "q_norm" in parts else None
        before, after = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        out, down = parts["o_proj"].projection, parts["down_proj"].projection
        found.append(Layer(before, attention, heads, out, after, wide, down))
    return Layers(network, found, cache)


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _joined(parts: dict[str, Any], names: Sequence[str]) -> Projection | None:
    """The one projection of all `names`."""
    found = {part.projection if isinstance(part := parts[name], Part) else None for name in names}
    return found.pop() if len(found) == 1 else None


def _norm(module: Any) -> Norm:
    return Norm(module.weight, getattr(module, "variance_epsilon", None) or module.eps)
