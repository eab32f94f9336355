"""Low-rank adapters on linear layers; several at once, routed by rows.

One implementation serves both sides: the engine routes rows of a batch to different frozen adapters, the
trainer holds one adapter with gradients. Folders are PEFT's (`adapter_config.json`,
`adapter_model.safetensors`), so vLLM, PEFT and transformers read them.

Implements: Hu et al., arXiv:2106.09685: y = W x + (alpha / r) B A x, A Kaiming-uniform, B zero.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nightschool.errors import AdapterError

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Rank, scale numerator and the names of the linear layers that carry an adapter."""

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ALL_LINEAR


@dataclass(slots=True)
class Routing:
    """Which rows (dimension 0 of a layer's input) go through which adapter, for the next forward.

    `spans` are (adapter name, first row, end row); rows in no span see the base alone. A trainer sets
    one span over all rows.
    """

    spans: list[tuple[str, int, int]] = field(default_factory=list)


class LoraLinear(nn.Module):
    """A frozen linear layer with named adapters. Shapes: x (rows, ..., in) -> (rows, ..., out)."""

    def __init__(self, base: nn.Linear, routing: Routing) -> None:
        super().__init__()
        self.base = base
        self.routing = routing
        self.lora_a = nn.ParameterDict()
        self.lora_b = nn.ParameterDict()
        self.scale: dict[str, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        for name, first, end in self.routing.spans:
            if name not in self.scale:
                continue
            a, b = self.lora_a[name].to(x.dtype), self.lora_b[name].to(x.dtype)
            if torch.is_inference_mode_enabled():
                # Two products for each layer and nothing else: small operators are what a decode step consists of.
                rows, out = x[first:end].reshape(-1, x.shape[-1]), y[first:end].view(-1, y.shape[-1])
                out.addmm_(rows @ a.T, b.T, alpha=self.scale[name])
            elif first == 0 and end == x.shape[0]:
                return y + (x @ a.T * self.scale[name]) @ b.T
            else:
                y[first:end] += (x[first:end] @ a.T) @ b.T * self.scale[name]
        return y


class LoraModel:
    """A base model whose target layers are replaced by `LoraLinear`. Adapters come and go by name."""

    def __init__(self, model: nn.Module, targets: tuple[str, ...] = ALL_LINEAR) -> None:
        self.model = model
        self.routing = Routing()
        self.layers: dict[str, LoraLinear] = {}
        model.requires_grad_(False)
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and path.rpartition(".")[2] in targets:
                layer = LoraLinear(module, self.routing)
                parent, _, leaf = path.rpartition(".")
                setattr(model.get_submodule(parent), leaf, layer)
                self.layers[path] = layer
        self.loaded: dict[str, LoraConfig] = {}

    def create(self, name: str, config: LoraConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        """Add a fresh trainable adapter (B = 0: the model is unchanged until the first step)."""
        generator = torch.Generator().manual_seed(seed)
        for path, layer in self._targets(config):
            a = torch.empty(config.rank, layer.base.in_features, dtype=torch.float32)
            bound = math.sqrt(3.0) * math.sqrt(2.0 / (1 + 5)) / math.sqrt(a.shape[1])
            a.uniform_(-bound, bound, generator=generator)
            b = torch.zeros(layer.base.out_features, config.rank)
            self._put(path, name, a.to(dtype), b.to(dtype), config)
        self.loaded[name] = config

    def load(self, name: str, folder: Path, dtype: torch.dtype = torch.float32) -> LoraConfig:
        """Read a PEFT folder as adapter `name`.

        Raises:
            AdapterError: files missing, layers unknown to this base, shapes that do not fit.
        """
        config, tensors = read_adapter(folder)
        expected = {path for path, _ in self._targets(config)}
        found = {key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")}
        if expected != found:
            raise AdapterError(
                f"The adapter in {folder.name} does not fit this base model.",
                f"{len(expected ^ found)} layers differ, among them {min(expected ^ found)}.",
                "nightschool models list",
            )
        for path in expected:
            a, b = tensors[f"{path}.lora_A.weight"], tensors[f"{path}.lora_B.weight"]
            base = self.layers[path].base
            if a.shape != (config.rank, base.in_features) or b.shape != (base.out_features, config.rank):
                raise AdapterError(
                    f"The adapter in {folder.name} does not fit this base model.",
                    f"{path} has shapes {tuple(a.shape)} and {tuple(b.shape)}.",
                    "nightschool models list",
                )
        for path in expected:
            a, b = tensors[f"{path}.lora_A.weight"], tensors[f"{path}.lora_B.weight"]
            self._put(path, name, a.to(dtype), b.to(dtype), config)
        self.loaded[name] = config
        return config

    def unload(self, name: str) -> None:
        del self.loaded[name]
        for layer in self.layers.values():
            if name in layer.scale:
                del layer.lora_a[name], layer.lora_b[name], layer.scale[name]

    def parameters(self, name: str) -> list[nn.Parameter]:
        """A and B of every layer of one adapter, in layer order."""
        layers = [layer for layer in self.layers.values() if name in layer.scale]
        return [p for layer in layers for p in (layer.lora_a[name], layer.lora_b[name])]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Float32 copies under the layer's path: `<path>.lora_A.weight`, `<path>.lora_B.weight`."""
        out: dict[str, Tensor] = {}
        for path, layer in self.layers.items():
            if name in layer.scale:
                out[f"{path}.lora_A.weight"] = layer.lora_a[name].detach().float().clone()
                out[f"{path}.lora_B.weight"] = layer.lora_b[name].detach().float().clone()
        return out

    def assign(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Copy values of `tensors()` back into a loaded adapter, in place."""
        with torch.no_grad():
            for path, layer in self.layers.items():
                if name in layer.scale:
                    layer.lora_a[name].copy_(tensors[f"{path}.lora_A.weight"])
                    layer.lora_b[name].copy_(tensors[f"{path}.lora_B.weight"])

    def _targets(self, config: LoraConfig) -> list[tuple[str, LoraLinear]]:
        return [(path, layer) for path, layer in self.layers.items() if path.rpartition(".")[2] in config.targets]

    def _put(self, path: str, name: str, a: Tensor, b: Tensor, config: LoraConfig) -> None:
        layer = self.layers[path]
        device = layer.base.weight.device
        layer.lora_a[name] = nn.Parameter(a.to(device))
        layer.lora_b[name] = nn.Parameter(b.to(device))
        layer.scale[name] = config.alpha / config.rank


PREFIX = "base_model.model."


def write_adapter(folder: Path, config: LoraConfig, tensors: dict[str, Tensor], base_name: str) -> None:
    """Write a PEFT folder. `tensors` as from `LoraModel.tensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    peft = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted(config.targets),
    }
    (folder / "adapter_config.json").write_text(json.dumps(peft, indent=1, sort_keys=True) + "\n")
    ordered = {PREFIX + key: tensors[key].contiguous() for key in sorted(tensors)}
    save_file(ordered, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def read_adapter(folder: Path) -> tuple[LoraConfig, dict[str, Tensor]]:
    """Read a PEFT folder; keys lose PEFT's prefix.

    Raises:
        AdapterError: a file is missing or broken, or the adapter uses a feature other than plain LoRA.
    """
    try:
        peft = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError) as error:
        raise AdapterError(f"The adapter in {folder.name} cannot be read.", str(error), "nightschool doctor") from error
    unsupported = [
        k for k in ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern") if peft.get(k)
    ]
    if peft.get("peft_type") != "LORA" or peft.get("bias", "none") != "none" or unsupported:
        raise AdapterError(
            f"The adapter in {folder.name} is not plain LoRA.",
            f"It uses {', '.join(unsupported) or peft.get('peft_type')}.",
            "Export it as plain LoRA.",
        )
    config = LoraConfig(peft["r"], peft["lora_alpha"], tuple(sorted(peft["target_modules"])))
    return config, {key.removeprefix(PREFIX): value for key, value in tensors.items()}
