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
from nightschool.training.attention import TreePlan
from nightschool.training.layer import Kept
from nightschool.training.local import POLICY, LocalBackend
from nightschool.training.stack import Stack
from nightschool.types import Sample

RANK = 4


class Counter(TorchDispatchMode):
    """Adds up what torch's own formulas say of operators; `FlopCounterMode` leaves out those that write in place."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__.removesuffix("_")
        formula = flop_registry.get(getattr(torch.ops.aten, name, None))
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
    """Pairs of a query and a key that the attention's blocks compute, seen or not."""
    plan = TreePlan.of(one, backend.base.dtype, backend.base.device)
    keys = [sum(end - first for first, end in block.ranges) for block in plan.blocks]
    return sum((block.end - block.first) * seen for block, seen in zip(plan.blocks, keys, strict=True))


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
    layers = Stack.of(backend.base.network)
    assert layers is not None
    _, passed = layers.forward(one, POLICY, keeps=True)
    found = [kept.num_bytes for kept in passed.kept if isinstance(kept, Kept)]
    assert found == [one.num_tokens * kept_per_token(read_shape(folder), 4)] * 2
