"""`nightschool up` with a real engine: serving, dying, starting again, stopping."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from up_process import Up, lives

from nightschool.cli.main import main
from nightschool.store.database import Store
from nightschool.store.schema import exchanges


def wait_gone(pid: int, timeout_s: float = 15) -> None:
    until = time.monotonic() + timeout_s
    while lives(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.05)


def test_serves_records_and_stops_with_ctrl_c(start_up, state, run):
    up: Up = start_up(state)
    running = up.wait_ready()
    told = up.out.read_text()
    assert told.startswith(f"Nightschool is up: {running.gateway_url}\n")
    assert running.engine_key not in told + up.err.read_text()
    assert stat.S_IMODE((state / "up.json").stat().st_mode) == 0o600

    status, reply = up.chat()
    assert status == 200
    assert reply["choices"][0]["message"]["role"] == "assistant"
    assert "<h1>" in up.get("/")[1]

    document = run("status", "--json").document
    assert document["data"]["running"] is True
    assert document["data"]["recording"]["lost"] == 0
    doctor = {check["name"]: check["state"] for check in run("doctor", "--json").document["data"]["checks"]}
    assert (doctor["engine"], doctor["gateway"]) == ("ok", "ok")

    engine_pid = running.engine_pid
    assert up.stop(signal.SIGINT) == 0
    assert not lives(engine_pid)
    assert not (state / "up.json").exists()
    with Store.open(state / "store.sqlite") as store, store.read() as conn:
        assert [row.status for row in conn.execute(exchanges.select())] == ["ok"]


def test_a_killed_engine_is_told_and_started_again(start_up, state):
    up: Up = start_up(state)
    pid = up.wait_ready().engine_pid
    answers: list[tuple[int, dict]] = []
    enough = threading.Event()

    def customer() -> None:
        while not enough.is_set():
            answers.append(up.chat(max_tokens=300))

    crowd = [threading.Thread(target=customer) for _ in range(4)]
    for thread in crowd:
        thread.start()
    while not answers:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    enough.set()
    for thread in crowd:
        thread.join(30)
    refused = [reply["error"] for status, reply in answers if status == 502]
    assert {status for status, _ in answers} == {200, 502}
    assert {error["what"] for error in refused} <= {
        "The engine went away before its answer was complete.",
        "The engine cannot be reached.",
    }
    assert all(error["why"] and error["next"] and error["message"] for error in refused)
    up.wait_told("It is started again in 0.5 s.")
    assert "SIGKILL" in up.err.read_text()
    up.wait_told("The engine is ready again")
    assert up.running.engine_pid != pid
    assert up.chat()[0] == 200
    assert up.stop(signal.SIGTERM) == 0


def test_an_engine_does_not_outlive_a_killed_up_and_the_next_up_starts(start_up, state, run):
    up: Up = start_up(state)
    engine_pid = up.wait_ready().engine_pid
    up.process.kill()
    up.process.wait()
    wait_gone(engine_pid)
    assert (state / "up.json").exists(), "nobody could remove it"
    assert run("status").code == 0  # and nobody believes it
    again: Up = start_up(state)
    again.wait_ready()
    assert again.chat()[0] == 200


def test_one_store_has_one_up_and_a_second_store_may_share_the_engine(start_up, state, tmp_path, capsys):
    first: Up = start_up(state)
    running = first.wait_ready()
    assert main(["up", "--state", str(state), "--port", "0", "--json"]) == 6
    refusal = json.loads(capsys.readouterr().out)["error"]
    assert f"Process {running.pid}" in refusal["why"]

    # An engine that already runs, and a port that is taken: --find-port takes the next free one.
    port = int(running.gateway_url.rpartition(":")[2])
    words = ("--engine", running.engine_url, "--port", str(port), "--find-port")
    second: Up = start_up(tmp_path / "second", *words, NIGHTSCHOOL_ENGINE_KEY=running.engine_key)
    other = second.wait_ready()
    assert (other.engine_pid, other.engine_url) == (None, running.engine_url)
    assert port < int(other.gateway_url.rpartition(":")[2]) < port + 100
    assert second.chat()[0] == 200
    assert second.stop() == 0
    assert first.chat()[0] == 200, "somebody else's engine is not stopped"


def test_a_busy_port_is_an_error_before_anything_starts(state, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["up", "--state", str(state), "--port", str(port)]) == 6
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"Port {port} of 127.0.0.1 cannot be used."
    assert told[2].endswith(f"nightschool up --port {port} --find-port")


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--model", "no/such/model"], 5, "There is no model in no/such/model."),
        (["--host", "0.0.0.0"], 3, "Nightschool does not listen on 0.0.0.0."),
        (["--engine", "http://127.0.0.1:9"], 5, "The engine does not answer."),
        (["--engine", "file:///etc"], 2, "'file:///etc' is no engine's address."),
    ],
)
def test_what_keeps_it_from_starting(state, capsys, words, code, what):
    assert main(["up", "--state", str(state), "--port", "0", *words]) == code
    assert capsys.readouterr().err.splitlines()[0] == what
    assert not (state / "up.json").exists()


def test_an_engine_that_cannot_load_its_model_says_why(start_up, state, tiny, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "config.json").write_text("{}")
    up: Up = start_up(state, model=broken)
    assert up.process.wait(120) == 5
    told = up.err.read_text()
    assert "The engine did not start." in told
    assert "(code 1)" in told or "(code 5)" in told
    assert "Traceback" not in told


def test_ctrl_c_while_the_engine_loads_leaves_nothing_behind(start_up, state):
    up: Up = start_up(state)
    until = time.monotonic() + 60
    while not (state / "engine.log").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    children = subprocess.run(["pgrep", "-P", str(up.process.pid)], capture_output=True, text=True, check=False)
    assert up.stop(signal.SIGINT) == 130
    for pid in map(int, children.stdout.split()):
        wait_gone(pid)
    assert "Traceback" not in up.err.read_text()
    assert up.err.read_text().splitlines()[-3] == "Interrupted."


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "nightschool", "--help"], capture_output=True, text=True, check=True)
    assert "nightschool up" in done.stdout
