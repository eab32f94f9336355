"""`nightschool objectives` and training from files of every shape, on a tiny model."""

import json

import pytest

from nightschool.objectives.clipping import Clip, Ratio
from nightschool.store.database import Store
from nightschool.training.plans import config_of
from nightschool.training.runs import load_run

QUESTION = {"role": "user", "content": "order 7"}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reply(text):
    return {"role": "assistant", "content": text}


def pairs(path, count=40):
    made = ({"role": "user", "content": f"order {i}"} for i in range(count))
    return write(path, *({"prompt": [q], "chosen": [reply("the tool")], "rejected": [reply("7")]} for q in made))


def thumbs(path, count=64):
    made = (({"role": "user", "content": f"order {i}"}, i % 2 == 0) for i in range(count))
    rows = ({"prompt": [q], "completion": [reply("the tool" if good else "7")], "label": good} for q, good in made)
    return write(path, *rows)


@pytest.fixture
def base(run, tiny):
    return lambda *words: run(*words, "--agent", "shop", "--json")


@pytest.fixture(autouse=True)
def settings(state, tiny):
    (state.parent / "nightschool.toml").write_text(f"model = {json.dumps(str(tiny))}\n")


def test_pairs_are_for_dpo_alone_and_thumbs_for_single_rollouts(base, tmp_path):
    told = base("objectives", "--data", str(pairs(tmp_path / "pairs.jsonl")))
    assert told.code == 0, told.err
    legal = {one["name"]: one["rows"] for one in told.document["data"]["objectives"] if one["against"] is None}
    assert legal["dpo"] == 80, "two rows a pair"
    assert set(legal) == {"dpo"}
    assert told.document["data"]["advised"] == "dpo"
    told = base("objectives", "--data", str(thumbs(tmp_path / "thumbs.jsonl")))
    legal = {one["name"]: one["rows"] for one in told.document["data"]["objectives"] if one["against"] is None}
    assert legal["oapl"] == 64
    assert "oapl_group" not in legal, "no request was answered twice"
    assert told.document["data"]["advised"] == "oapl"


def test_nothing_recorded_is_said_with_what_would_do(base, store):
    told = base("objectives")
    assert told.document["data"]["advised"] is None
    assert all(one["against"] for one in told.document["data"]["objectives"])


def words(path, count=24):
    made = ({"role": "user", "content": f"order {i}"} for i in range(count))
    rows = ({"prompt": [q], "completion": [reply("7")], "feedback": "say the tool"} for q in made)
    return write(path, *rows)


def twice(path, count=16):
    """Two replies to each request, one of them right."""
    made = [{"role": "user", "content": f"order {i}"} for i in range(count)]
    said = (("the tool", True), ("7", False))
    return write(path, *({"prompt": [q], "completion": [reply(t)], "label": good} for q in made for t, good in said))


@pytest.mark.parametrize(
    ("objective", "data"),
    [
        ("dpo", pairs),
        ("kto", thumbs),
        ("bco", thumbs),
        ("dro", thumbs),
        ("rft", thumbs),
        ("oapl", thumbs),
        ("grpo", twice),
        ("dapo", twice),
        ("ppo", thumbs),
    ],
)
def test_a_file_trains_an_adapter(base, tiny, tmp_path, state, objective, data):
    path = data(tmp_path / "data.jsonl")
    told = base("train", "--objective", objective, "--data", str(path), "--model", str(tiny))
    assert told.code == 0, told.err
    found = told.document["data"]
    assert found["objective"] == objective
    assert (state / "adapters" / found["adapter"] / "adapter_model.safetensors").exists()


def test_a_run_tells_what_its_value_model_was_worth(run, base, tmp_path):
    """Every second thumb is up, and no request says which: what was expected is about a half, and a half came true."""
    path = str(thumbs(tmp_path / "data.jsonl"))
    told = run("train", "--objective", "dro", "--data", path, "--agent", "shop")
    assert told.code == 0, told.err
    assert "Brier score" in told.out
    assert "bin 1" in told.out
    found = base("train", "--objective", "dro", "--data", path).document["data"]["value_model"]
    assert found["rows"] == 64
    assert found["brier_low"] < found["brier"] < found["brier_high"]
    assert base("train", "--objective", "kto", "--data", path).document["data"]["value_model"] is None


def test_settings_of_a_clip_are_a_table_of_their_own_and_survive_a_resume(base, tiny, tmp_path, state):
    table = '[training.gspo.rule.clip]\nclip_low = 0.1\n[training.gspo.rule]\naggregation = "token-mean"\n'
    (state.parent / "nightschool.toml").write_text(f"model = {json.dumps(str(tiny))}\n{table}")
    told = base("train", "--objective", "gspo", "--data", str(twice(tmp_path / "data.jsonl")))
    assert told.code == 0, told.err
    with Store.open(state / "store.sqlite") as store:
        rule = config_of(load_run(store, told.document["data"]["run"])).rule
    assert rule.clip == Clip(0.1, 4e-4, Ratio.SEQUENCE)
    assert rule.aggregation == "token-mean"
    (state.parent / "nightschool.toml").write_text('[training.gspo.rule]\naggregation = "mean"\n')
    told = base("train", "--objective", "gspo", "--data", str(twice(tmp_path / "data.jsonl")))
    assert "seq-sum-const" in told.out, "the known ones are named"


@pytest.mark.parametrize(
    ("table", "known"),
    [
        ('[training.sft.rule]\naggregation = "mean"', "seq-sum-const"),
        ('[training.topr.rule]\naggregation = "mean"', "seq-sum-const"),
        ('[training.hindsight.rule]\naggregation = "mean"', "seq-sum-const"),
        ('[training.sft.backend]\ndtype = "half"', "bfloat16"),
    ],
)
def test_a_word_that_is_no_setting_is_told_with_those_that_are(base, tmp_path, state, table, known):
    (state.parent / "nightschool.toml").write_text(f"{table}\n")
    name = table.split(".")[1]
    told = base("train", "--objective", name, "--data", str(thumbs(tmp_path / "data.jsonl")))
    assert told.code == 2
    assert known in told.out


def test_a_refusal_names_what_tells_of_the_same_rows(run, base, tmp_path):
    """All thumbs point up: whoever brought a file is told to look at that file, not to build anything."""
    good = ({"prompt": [QUESTION], "completion": [reply("the tool")], "label": True} for _ in range(8))
    path = write(tmp_path / "good.jsonl", *good)
    told = base("train", "--objective", "kto", "--data", str(path))
    assert told.code == 3
    assert told.document["refusal"]["next"] == f"nightschool objectives --data {path}"
    told = run("objectives", "--data", str(thumbs(tmp_path / "thumbs.jsonl")), "--agent", "shop")
    assert f"nightschool train --objective oapl --data {tmp_path / 'thumbs.jsonl'}" in told.err


@pytest.mark.parametrize("objective", ["hindsight", "sdpo"])
def test_words_alone_teach_nobody_until_their_teacher_is_audited(base, tiny, tmp_path, objective):
    told = base("train", "--objective", objective, "--data", str(words(tmp_path / "data.jsonl")), "--model", str(tiny))
    assert (told.code, told.document["kind"]) == (4, "refusal")
    said = told.document["refusal"]
    assert "come from 0 people" in said["why"]
    assert said["next"] == "nightschool train --objective bco --data FILE --agent shop"
