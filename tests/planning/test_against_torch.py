"""The counts against what the training step really does."""

import pytest
import torch
from tiny import make_tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.models.shapes import read_shape
from nightschool.objectives.catalog import find_objective
from nightschool.planning.memory import kept_per_token
from nightschool.planning.operations import Tokens, forward_operations, training_operations
from nightschool.planning.work import block_keys
from nightschool.training.attention import BLOCK, TreePlan
from nightschool.training.local import POLICY, LocalBackend
from nightschool.types import Sample

RANK = 4


class Counter(TorchDispatchMode):
    """Adds up what torch's own formulas say of every operator. `FlopCounterMode` also follows modules, and stumbles
    over one that is called inside an autograd function."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.operations += 0 if formula is None else formula(*args, **(kwargs or {}), out_val=out)
        return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def backend(folder):
    opened = LocalBackend(load_base(folder, torch.float32, "cpu"), LoraConfig(RANK, 8))
    opened.open(None)
    return opened


@pytest.fixture
def samples():
    """Four replies of 30 tokens to one prompt of 200."""
    sampled = (False,) * 200 + (True,) * 30
    prompt = tuple(3 + place % 250 for place in range(200))
    replies = [tuple(3 + (n * 37 + at) % 250 for at in range(30)) for n in range(4)]
    return [Sample(str(n), (*prompt, *reply), sampled, sampled) for n, reply in enumerate(replies)]


def executed(one, backend):
    """Pairs of a query and a key that the attention's blocks compute, needed or not."""
    plan = TreePlan.of(one, backend.base.dtype, backend.base.device)
    return sum(len(bucket.blocks) * BLOCK * bucket.num_keys for bucket in plan.buckets)


def test_operations_are_those_that_torch_counts(backend, samples, folder):
    (one,) = backend._packs(samples)
    tokens = Tokens(one.num_tokens, executed(one, backend), 4 * 30)
    shape, sft = read_shape(folder), find_objective("sft")
    with Counter() as counter:
        backend.forward_backward(samples, {"": sft.loss(sft.rule())})
    assert counter.operations == pytest.approx(training_operations(shape, RANK, tokens), rel=0.02)
    with Counter() as counter:
        backend.forward(samples)
    assert counter.operations == pytest.approx(forward_operations(shape, RANK, tokens), rel=0.02)


def test_what_is_kept_for_the_gradient(backend, samples, folder):
    (one,) = backend._packs(samples)
    weights = {parameter.untyped_storage().data_ptr() for parameter in backend.base.network.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backend._hidden(one, POLICY)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    keys = block_keys(one) / -(-one.num_tokens // BLOCK)
    predicted = one.num_tokens * kept_per_token(read_shape(folder), RANK, 4, keys, one.num_tokens)
    assert measured == pytest.approx(predicted, rel=0.2)
