"""`nightschool stages` on a tiny model: a handbook, then pairs, each also left out."""

import json


def test_what_each_stage_added(run, tiny, state):
    folder = state.parent
    talk = [
        ({"role": "user", "content": f"order {i}"}, {"role": "assistant", "content": "the tool"}) for i in range(120)
    ]
    (folder / "handbook.jsonl").write_text("".join(json.dumps({"messages": list(two)}) + "\n" for two in talk))
    other = {"role": "assistant", "content": "7"}
    pairs = ({"prompt": [asked], "chosen": [good], "rejected": [other]} for asked, good in talk)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (folder / "nightschool.toml").write_text(
        f"model = {json.dumps(str(tiny))}\n"
        '[[training.stages]]\nobjective = "sft"\ndata = "handbook.jsonl"\n'
        '[[training.stages]]\nobjective = "dpo"\ndata = "pairs.jsonl"\n'
    )
    told = run("stages", "--agent", "shop", "--leave-one-out", "--json")
    assert told.code == 0, told.err
    arms = told.document["data"]["arms"]
    assert [arm["without"] for arm in arms] == [None, "sft on handbook.jsonl", "dpo on pairs.jsonl"]
    whole, without_sft, without_dpo = (arm["scores"] for arm in arms)
    handbook, ranked = "sft on handbook.jsonl", "dpo on pairs.jsonl"
    assert whole[handbook]["value"] > without_sft[handbook]["value"], "the handbook taught what it says"
    assert without_dpo[handbook]["low"] > 0
    assert whole[ranked]["num_rows"] >= 8
    again = run("stages", "--agent", "shop", "--leave-one-out", "--json")
    assert again.document["data"] == told.document["data"], "nothing is run twice, and appraisal draws nothing anew"
    assert "is done" in again.err


def test_without_stages_it_says_how_they_are_declared(run, store):
    told = run("stages", "--agent", "shop")
    assert told.code != 0
    assert "[[training.stages]]" in told.err
