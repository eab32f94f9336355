"""What a run sends through its model, counted without one."""

import pytest

from nightschool.errors import InputError
from nightschool.objectives.catalog import find_objective
from nightschool.planning.numbers import Numbers, described
from nightschool.planning.operations import Tokens
from nightschool.planning.work import work_of
from nightschool.training.drift import DriftRule
from nightschool.training.loop import Course, LoopConfig
from nightschool.training.plans import BackendConfig, StudyConfig
from nightschool.types import Sample


def config(objective, **loop):
    return StudyConfig(find_objective(objective).rule(), BackendConfig(), LoopConfig(**{"epochs": 1, **loop}))


def plan(objective, numbers, draws=False, **loop):
    return described(numbers, find_objective(objective), config(objective, **loop), draws)


def test_shared_prefixes_count_once():
    work = plan("sft", Numbers(sequences=8, prompt=6, completion=3, group_size=4, shared=2))
    # 2 shared, 2 groups of 4 more, 8 replies of 3
    # context: 1 + 2; twice 3 + 4 + 5 + 6; eight times 7 + 8 + 9
    assert work.trained == Tokens(2 + 8 + 24, 3 + 36 + 192, 24, passes=1)
    assert (work.steps, work.padded, work.unique, work.longest) == (1, 8 * 9, 34, 9)
    assert work.read == work.between == Tokens()


def test_a_small_budget_repeats_prefixes():
    whole = plan("sft", Numbers(16, 100, 10, group_size=16))
    config_ = config("sft")
    cut = described(
        Numbers(16, 100, 10, group_size=16),
        find_objective("sft"),
        StudyConfig(config_.rule, BackendConfig(token_budget=180), config_.loop),
        False,
    )
    assert whole.trained.num == 100 + 160
    assert cut.trained.num == 2 * 100 + 160  # 8 replies beside the prompt in each of two packs
    assert cut.unique == whole.unique == 260
    assert (whole.largest.num_tokens, cut.largest.num_tokens) == (260, 180)


def test_an_anchored_objective_reads_first_and_a_coupled_one_twice():
    numbers = Numbers(32, 20, 5)
    dpo, sft = plan("dpo", numbers), plan("sft", numbers)
    assert dpo.trained == sft.trained
    assert dpo.between.num == 32 * 25  # the anchor reads everything once
    assert dpo.read == Tokens()  # one pack a batch: coupled losses need no second look
    small = StudyConfig(find_objective("dpo").rule(), BackendConfig(token_budget=64), LoopConfig(epochs=1))
    cut = described(numbers, find_objective("dpo"), small, False)
    assert cut.read == cut.trained  # several packs a batch: forward once more


def test_a_teacher_reads_once_before_the_run():
    work = plan("on_policy_distillation", Numbers(32, 20, 5))
    assert work.between.num == 32 * 25 + 32 * 25  # the teacher, and the anchor


def test_a_critic_trains_beside_the_policy():
    numbers = Numbers(32, 20, 5)
    ppo, grpo = plan("ppo", numbers), plan("grpo", numbers)
    assert ppo.trained.num == 2 * grpo.trained.num
    assert ppo.trained.scored == grpo.trained.scored  # its head is one number
    assert (ppo.largest.num_models, grpo.largest.num_models) == (2, 1)


def test_what_is_watched_is_read_after_every_step():
    def sample(name):
        tokens = tuple(range(int(name) * 100, int(name) * 100 + 10))
        sampled = (False,) * 6 + (True,) * 4
        return Sample(name, tokens, sampled, sampled)

    train, held_out = [sample(str(n)) for n in range(4)], [sample(str(n)) for n in range(10, 13)]
    oapl = find_objective("oapl")
    course = Course(
        tuple(train), tuple(held_out), {"": oapl.loss(oapl.rule())}, True, None,
        LoopConfig(epochs=3, windows=2, batch_size=2), DriftRule(),
    )  # fmt: skip
    work = work_of(course, 4096)
    assert work.steps == 2 * 3 * 2
    assert work.trained.num == 12 * 20
    assert work.read.num == 12 * 30  # three rows of ten
    assert work.between.num == 2 * (70 + 30)  # a window's anchor reads all, its end what is held out


def test_a_long_run_is_more_of_the_same():
    short, long = plan("sft", Numbers(48, 30, 10), batch_size=12), plan("sft", Numbers(480, 30, 10), batch_size=12)
    assert long.steps == pytest.approx(10 * short.steps)
    assert long.trained.num == pytest.approx(10 * short.trained.num)
    assert long.largest == short.largest
    assert plan("sft", Numbers(480, 30, 10), batch_size=12, max_steps=3).steps == pytest.approx(3)


def test_drawing():
    work = plan("grpo", Numbers(64, 100, 10, group_size=8), draws=True, batch_size=16)
    assert work.decode_steps == 4 * 10  # four rounds of sixteen
    # each reply's ten tokens see 101 to 110
    assert work.drawn == Tokens(640, 64 * 1055, 640)
    assert work.running == 2 * 100 + 16 * 10


@pytest.mark.parametrize(
    "numbers", [Numbers(0, 1, 1), Numbers(4, 10, 5, shared=10), Numbers(4, 10, 5, group_size=8), Numbers(4, 2**20, 5)]
)
def test_numbers_that_describe_nothing(numbers):
    with pytest.raises(InputError, match="describe no run"):
        plan("sft", numbers)
