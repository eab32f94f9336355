"""`nightschool import` as people type it."""

import json

GOOD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


def test_a_file_is_taken_once(run, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    dry = run("import", str(path), "--dry-run", "--json")
    assert (dry.code, dry.document["data"]["taken"]) == (0, {"sessions": 1, "exchanges": 1})
    told = run("import", "messages", str(path))
    assert told.code == 0
    assert "Took 1 session, 1 exchange." in told.out
    assert "Took nothing; merged 1 session, 1 exchange." in run("import", str(path)).out


def test_too_much_lost_is_a_failure_and_stores_nothing(run, tmp_path, state):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(GOOD) + '\n{"messages": [\n')
    told = run("import", str(path), "--json")
    assert told.code == 3
    document = told.document
    assert document["refusal"]["what"].startswith("Nothing was stored. 1 of 2 records cannot be taken")
    assert document["data"]["refused"] == {"cut off": {"count": 1, "places": ["line 2"]}}
    assert "Took 1 session" in run("import", str(path), "--max-lost", "50").out


def test_a_broken_file_names_its_line_and_no_other_file_is_stored(run, tmp_path):
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.json"
    good.write_text(json.dumps(GOOD) + "\n")
    bad.write_text('[{"messages": []},\n{"mess')
    told = run("import", str(good), str(bad))
    assert told.code == 2
    assert "cut off at line 2" in told.err
    assert run("import", str(good), "--dry-run", "--json").document["data"]["merged"] == {}


def test_a_folder_stands_for_the_logs_in_it(run, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "LICENSE").write_text("free")
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(json.dumps(GOOD | {"session": name}) + "\n")
    assert "Took 2 sessions, 2 exchanges." in run("import", str(folder)).out
    empty = run("import", str(tmp_path / "none.jsonl"))
    assert empty.code == 5


def test_what_was_taken_in_goes_out_again(run, tmp_path):
    path, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    run("import", str(path), "--agent", "shop")
    told = run("export", "messages", "--agent", "shop", "--out", str(out))
    assert told.code == 0
    assert "Wrote 1 rows from 1 sessions of shop" in told.out
    assert json.loads(out.read_text()) == GOOD
    empty = run("export", "kto", "--out", str(out), "--json").document["data"]
    assert (empty["rows"], sum(empty["left_out"].values())) == (0, 1)
