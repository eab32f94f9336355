"""The body of a decoder over a packed tree, with the gradient written out.

A frozen base needs no gradient of its weights, only an adapter's, and much of what a layer computes is quickly computed
again. A general network and its recorded graph keep all of it, three times as much, so the family that most open models
belong to (normalized by root mean square, rotary positions, grouped heads, a gated linear unit) is computed here.
Whether a network is of that family is decided by the names of its modules and then by numbers: its own forward has to
agree.

Budget: per layer and token three hidden widths, the widths of query, key and value, and twice the inner width are kept
for the gradient, 11.5 kB for a 135M model in bfloat16. Layers beyond `keep_bytes` keep their input alone, and are
computed once more.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from nightschool.models.products import can_pack
from nightschool.training.attention import TreePlan
from nightschool.training.layer import DOWN, GATED, HEAD_NORMS, NORMS, OUT, QKV, Kept, Layer, Norm, Rotation, Step
from nightschool.training.limits import KEEP_BYTES, ROWS
from nightschool.training.packing import Pack
from nightschool.training.projections import Factors


class Stack:
    """The layers of a network, whose linear layers may carry adapters."""

    @classmethod
    def of(cls, network: PreTrainedModel, keep_bytes: int = KEEP_BYTES) -> Stack | None:
        """`None` where the network's modules have other names. That it computes the same is for the caller to try."""
        body = cast(Any, network).base_model
        named = dict(body.named_modules())
        first = {name.removeprefix("layers.0.") for name in named if name.startswith("layers.0.")}
        known = {"self_attn", "mlp", "mlp.act_fn", *QKV, *OUT, *GATED, *DOWN, *NORMS, *HEAD_NORMS}
        known |= {f"{path}.{part}" for path in (*QKV, *OUT, *GATED, *DOWN) for part in ("base", "lora_a", "lora_b")}
        silu = getattr(network.config, "hidden_act", None) == "silu"
        whole = {"embed_tokens", "rotary_emb", "norm"} <= named.keys()
        fits = silu and whole and set(NORMS) <= first <= known and {"self_attn", "mlp"} <= first
        return cls(network, keep_bytes) if fits and first >= {*QKV, *OUT, *GATED, *DOWN} else None

    def __init__(self, network: PreTrainedModel, keep_bytes: int) -> None:
        body = cast(Any, network).base_model
        config = network.config
        weight = body.layers[0].mlp.down_proj
        packs = can_pack(getattr(weight, "base", weight).weight)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layers = [Layer(block, width, packs) for block in body.layers]
        self._embed, self._rotary, self._last = body.embed_tokens, body.rotary_emb, Norm(body.norm)
        self._keep_bytes = keep_bytes

    def hidden(self, one: Pack, adapter: str | None) -> Tensor:
        """Normalized hidden states (T, hidden) of a pack's nodes, with a gradient for the adapter."""
        parameters = [p for layer in self.layers for each in layer.projections for p in each.parameters(adapter or "")]
        return cast(Tensor, _Body.apply(self, one, adapter or "", *parameters))

    def start(self, one: Pack) -> tuple[Tensor, Step]:
        """Embedded tokens (T, hidden), and what the layers share."""
        device = self._embed.weight.device
        x = self._embed(torch.from_numpy(one.token_ids).to(device))
        cos, sin = self._rotary(x, torch.from_numpy(one.position_ids)[None].to(device))
        half = cos.shape[-1] // 2
        rotation = Rotation(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
        rows = ROWS if device.type == "cpu" else one.num_tokens
        return x, Step(TreePlan.of(one, x.dtype, device), rotation, rows)

    def forward(self, one: Pack, adapter: str, keeps: bool) -> tuple[Tensor, _Passed]:
        x, step = self.start(one)
        passed = _Passed(step, [], [layer.factors(adapter, x.dtype) for layer in self.layers])
        left = self._keep_bytes if keeps else 0
        for layer, factors in zip(self.layers, passed.factors, strict=True):
            before, wanted = x, left > 0
            x, kept = layer.forward(x, step, factors, keeps=wanted)
            passed.kept.append(kept or (before if keeps else None))
            left -= kept.num_bytes if kept else 0
        passed.last = x if keeps else None
        return self._last.forward(x), passed

    def backward(self, grad: Tensor, passed: _Passed) -> None:
        """Add the adapter's gradient to its factors."""
        assert passed.last is not None
        grad = self._last.backward(passed.last, grad)
        for layer, factors in zip(reversed(self.layers), reversed(passed.factors), strict=True):
            kept = passed.kept.pop()
            if isinstance(kept, Tensor):
                kept = layer.forward(kept, passed.step, factors, keeps=True)[1]
            assert kept is not None
            grad = layer.backward(grad, kept, passed.step, factors)


class _Passed:
    """What a forward leaves for its gradient: per layer all of `Kept`, or its input alone."""

    def __init__(self, step: Step, kept: list[Kept | Tensor | None], factors: list[list[Factors | None]]) -> None:
        self.step = step
        self.kept = kept
        self.factors = factors
        self.last: Tensor | None = None


class _Body(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stack: Stack, one: Pack, adapter: str, *parameters: Tensor) -> Tensor:
        out, ctx.passed = stack.forward(one, adapter, keeps=any(ctx.needs_input_grad))
        ctx.stack, ctx.adapter = stack, adapter
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        ctx.stack.backward(grad_outputs[0], ctx.passed)
        grads: list[Tensor] = []
        for layer, factors in zip(ctx.stack.layers, ctx.passed.factors, strict=True):
            for projection, one in zip(layer.projections, factors, strict=True):
                grads += projection.gradients(ctx.adapter, one) if one is not None else []
        return None, None, None, *grads
