"""The local backend on a tiny model: packing changes nothing, resume is exact, broken numbers stop a step."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_backend import small_backend
from tiny import make_tiny_model

from nightschool.errors import InputError
from nightschool.models import attention as dense
from nightschool.objectives.loss import Loss
from nightschool.objectives.regression import SQUARED as SQUARED_LOSS
from nightschool.training import attention as tree
from nightschool.training.backend import AdamConfig, NotFiniteError
from nightschool.training.local import POLICY, LocalBackend
from nightschool.types import Sample

SFT, SQUARED = {"": Loss("sft")}, {"": SQUARED_LOSS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def make_samples(count: int = 9) -> list[Sample]:
    rng = random.Random(3)
    system = [rng.randrange(3, 250) for _ in range(20)]
    samples = []
    for index in range(count):
        first = [rng.randrange(3, 6) for _ in range(3)]
        ids = (*system, *first, *[rng.randrange(3, 250) for _ in range(rng.randrange(6, 30))])
        completion = tuple(place >= 22 and place % 5 != 0 for place in range(len(ids)))  # every fifth: a tool's
        anchor = tuple(-rng.random() if used else None for used in completion)
        notes = {"advantage": rng.random() - 0.5, "beta": 0.25, "temperature": 0.7 if index % 3 == 0 else 1.0}
        samples.append(Sample(str(index), ids, completion, completion, reference_logprobs=anchor, annotations=notes))
    return samples


def plain_logprobs(backend: LocalBackend, sample: Sample) -> list[float | None]:
    """One row through the model's own forward, with the dense attention the engine uses."""
    backend.base.network.set_attn_implementation(dense.NAME)  # type: ignore[operator]
    ids = torch.tensor([sample.token_ids])
    length = ids.shape[1]
    backend.lora.routing.spans = [(POLICY, 0, 1)]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        logits = backend.base.network(input_ids=ids, attention_mask=mask, use_cache=False).logits[0]
    backend.base.network.set_attn_implementation(tree.NAME)  # type: ignore[operator]
    scored = (logits.float() / sample.annotations["temperature"]).log_softmax(-1)
    return [
        scored[place - 1, token].item() if used else None
        for place, (token, used) in enumerate(zip(sample.token_ids, sample.completion_mask, strict=True))
    ]


def gradients(backend: LocalBackend, samples: list[Sample], loss: Any = SQUARED) -> torch.Tensor:
    backend.forward_backward(samples, loss)
    grads = torch.cat([p.grad.flatten() for p in backend.lora.parameters(POLICY) if p.grad is not None])
    backend._drop_gradient()
    return grads


def test_packed_logprobs_are_those_of_one_row_at_a_time(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples()
    for sample, packed in zip(samples, backend.forward(samples), strict=True):
        for found, expected in zip(packed, plain_logprobs(backend, sample), strict=True):
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert found == pytest.approx(expected, abs=1e-4)


def test_packed_logprobs_are_those_of_a_padded_batch(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples()
    packed = backend.forward(samples)
    width = max(len(s.token_ids) for s in samples)
    ids = torch.tensor([[*s.token_ids, *[0] * (width - len(s.token_ids))] for s in samples])
    causal = torch.ones(width, width, dtype=torch.bool).tril()[None, None].expand(len(samples), -1, -1, -1)
    backend.base.network.set_attn_implementation(dense.NAME)  # type: ignore[operator]
    backend.lora.routing.spans = [(POLICY, 0, len(samples))]
    with torch.no_grad():
        logits = backend.base.network(input_ids=ids, attention_mask=causal, use_cache=False).logits.float()
    for row, sample in enumerate(samples):
        scored = (logits[row] / sample.annotations["temperature"]).log_softmax(-1)
        for place in range(1, len(sample.token_ids)):
            if sample.completion_mask[place]:
                assert packed[row][place] == pytest.approx(scored[place - 1, sample.token_ids[place]].item(), abs=1e-4)


@pytest.mark.parametrize("loss", [SFT, SQUARED])
def test_gradients_depend_on_neither_split_nor_order(folder: Path, loss: Any) -> None:
    samples = make_samples()
    whole = gradients(small_backend(folder), samples, loss)
    assert whole.norm() > 1e-3
    for other in (
        gradients(small_backend(folder, token_budget=60), samples, loss),  # several packs
        gradients(small_backend(folder, token_budget=1), samples, loss),  # one row each: nothing shared
        gradients(small_backend(folder), samples[::-1], loss),
    ):
        assert (other - whole).abs().max() < 1e-4 * whole.abs().max() + 1e-7


def test_gradient_agrees_with_a_finite_difference(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples(4)
    parameter = backend.lora.parameters(POLICY)[1]
    backend.forward_backward(samples, SQUARED)
    assert parameter.grad is not None
    slope = parameter.grad[2, 1].item()
    values = []
    for shift in (1e-2, -2e-2):
        with torch.no_grad():
            parameter[2, 1] += shift
        values.append(backend.forward_backward(samples, SQUARED).loss)
    assert slope == pytest.approx((values[0] - values[1]) / 2e-2, rel=0.02, abs=1e-4)


def test_a_tool_token_never_enters_the_loss(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples(3)
    before = backend.forward_backward(samples, SQUARED)
    poisoned = [
        replace(
            s,
            reference_logprobs=tuple(
                -99.0 if not used else x for x, used in zip(s.reference_logprobs or (), s.loss_mask, strict=True)
            ),
        )
        for s in samples
    ]
    assert backend.forward_backward(poisoned, SQUARED).loss == before.loss
    scored = [i for i, x in enumerate(before.logprobs[0]) if x is not None]
    assert scored == [i for i, used in enumerate(samples[0].loss_mask) if used]


def test_a_step_raises_the_good_and_lowers_the_bad(folder: Path) -> None:
    backend = small_backend(folder)
    good, bad = make_samples(2)
    anchored = [
        replace(s, reference_logprobs=lp, annotations={"advantage": a, "beta": 0.25, "temperature": 1.0})
        for s, lp, a in zip(
            (good, bad), backend.forward([replace(s, annotations={}) for s in (good, bad)]), (0.5, -0.5), strict=True
        )
    ]
    for step in range(5):
        tokens = backend.forward_backward(anchored, SQUARED).num_tokens
        assert tokens < sum(len(s.token_ids) for s in anchored)
        backend.optim_step(AdamConfig(learning_rate=1e-4), step)
    ratios = [
        sum(p - r for p, r in zip(new, s.reference_logprobs or (), strict=True) if p is not None and r is not None)
        for new, s in zip(backend.forward(anchored), anchored, strict=True)
    ]
    assert ratios[0] > 0 > ratios[1]


def test_a_step_id_is_applied_once(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples(2)
    backend.forward_backward(samples, SFT)
    first = backend.optim_step(AdamConfig(), 0)
    after = backend.lora.tensors(POLICY)
    backend.forward_backward(samples, SFT)
    again = backend.optim_step(AdamConfig(), 0)
    assert (first.applied, again.applied) == (True, False)
    assert again.grad_norm == first.grad_norm
    assert all(torch.equal(value, after[key]) for key, value in backend.lora.tensors(POLICY).items())
    with pytest.raises(InputError, match="no gradient"):  # the retry's gradient does not leak into step 1
        backend.optim_step(AdamConfig(), 1)


def run_steps(backend: LocalBackend, samples: list[Sample], steps: range) -> None:
    for step in steps:
        backend.forward_backward(samples[step % 3 :], SQUARED)
        backend.optim_step(AdamConfig(learning_rate=1e-2), step)


def test_resume_is_exact(folder: Path, tmp_path: Path) -> None:
    samples = make_samples()
    through = small_backend(folder)
    run_steps(through, samples, range(8))
    halted = small_backend(folder)
    run_steps(halted, samples, range(5))
    halted.save_state(tmp_path / "state")
    resumed = small_backend(folder)
    resumed.load_state(tmp_path / "state")
    run_steps(resumed, samples, range(5, 8))
    through.save_adapter(tmp_path / "a")
    resumed.save_adapter(tmp_path / "b")
    name = "adapter_model.safetensors"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not list(tmp_path.rglob("*.pt"))
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_long_gradient_is_cut_to_a_multiple_of_the_median(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples(3)
    assert backend.adam is not None
    backend.adam.norms = [1e-6] * 4
    backend.forward_backward(samples, SFT)
    report = backend.optim_step(AdamConfig(clip_factor=2.0), 0)
    assert report.clipped
    assert report.grad_norm > 2e-6
    # Adam's first moment after one step is 0.1 times the clipped gradient: norm 0.1 * 2 * 1e-6
    moments = torch.cat([state["exp_avg"].flatten() for state in backend.adam.inner.state.values()])
    assert moments.norm().item() == pytest.approx(2e-7, rel=1e-4)


def test_broken_numbers_stop_the_step(folder: Path) -> None:
    backend, samples = small_backend(folder), make_samples(2)
    broken = [replace(s, weight=float("nan")) for s in samples]
    with pytest.raises(NotFiniteError, match="loss"):
        backend.forward_backward(broken, SFT)
    before = backend.lora.tensors(POLICY)
    backend.forward_backward(samples, SFT)
    grad = backend.lora.parameters(POLICY)[0].grad
    assert grad is not None
    grad[0, 0] = float("inf")
    with pytest.raises(NotFiniteError, match="gradient"):
        backend.optim_step(AdamConfig(), 0)
    assert all(torch.equal(value, before[key]) for key, value in backend.lora.tensors(POLICY).items())


def test_a_mask_on_the_first_token_is_refused(folder: Path) -> None:
    backend = small_backend(folder)
    mask = (True, True)
    with pytest.raises(InputError, match="mask"):
        backend.forward_backward([Sample("s", (5, 6), mask, mask)], SFT)


def test_a_missing_anchor_value_is_not_a_number(folder: Path) -> None:
    backend, (sample,) = small_backend(folder), make_samples(1)
    holes = (None,) * len(sample.token_ids)
    with pytest.raises(InputError, match="reference"):
        backend.forward_backward([replace(sample, reference_logprobs=holes)], SQUARED)
