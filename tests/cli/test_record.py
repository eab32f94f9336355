"""`nightschool record`: in front of any provider, with nothing of what models need."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fake_engine import FakeEngine, serve
from patience import wait_until

from nightschool.cli.running import read_running
from nightschool.store.database import Store
from nightschool.store.schema import bodies, exchanges, feedback

SECRET = "sk-live-0123456789"
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))
WITHOUT_MODELS = (
    "import sys\n"
    "for name in ('torch', 'transformers', 'safetensors', 'gguf', 'accelerate', 'peft'): sys.modules[name] = None\n"
    "from nightschool.cli.main import main\n"
    "sys.exit(main(sys.argv[1:]))\n"
)


class Recording:
    """One `nightschool record` in a process of its own, where no model package can be imported."""

    def __init__(self, state: Path, upstream: str, **environment: str) -> None:
        self.state = state
        self.log = state.parent / "record.log"
        command = [sys.executable, "-c", WITHOUT_MODELS, "record", "--upstream", upstream, "--port", "0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--agent", "coder", "--state", str(state)],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                cwd=state.parent,
            )
        until = time.monotonic() + 60
        while (found := read_running(state)) is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.01)
        self.url = found.gateway_url

    def cpu_s(self) -> float:
        """Processor time since its start: other work on the machine does not count."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **headers})
        try:
            with LOOPBACK.open(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def chat(self, **headers: str) -> tuple[int, Any]:
        said = [{"role": "user", "content": "sort a list"}]
        return self.ask("/v1/chat/completions", {"model": "tiny-base", "messages": said}, **headers)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def start(upstream: str, **environment: str) -> Recording:
            (tmp_path / "state").mkdir()
            found = Recording(tmp_path / "state", upstream, **environment)
            stack.callback(found.stop)
            return found

        yield start


def stored(state: Path) -> list[Any]:
    with Store.open(state / "store.sqlite") as store, store.read() as conn:
        return list(conn.execute(exchanges.select().order_by(exchanges.c.started_at)).mappings())


def test_starts_at_once_and_passes_the_callers_key_on_without_keeping_it(recording):
    engine = FakeEngine(gives_ids=False)
    with serve(engine.app()) as url:
        record = recording(url)
        assert record.cpu_s() < 2.0
        status, reply = record.chat(authorization=f"Bearer {SECRET}")
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "Hello ✓")
        assert engine.headers[-1]["authorization"] == f"Bearer {SECRET}"
        said = {"exchange": reply["id"], "kind": "thumb", "value": True}
        token = (record.state / "token").read_text().strip()
        assert record.ask("/v1/feedback", said, authorization=f"Bearer {token}")[0] in (200, 201, 202)
        wait_until(lambda: "material" in record.ask("/index.json")[1]["data"])  # recorded a moment after the reply
        _, page = record.ask("/index.json")
        usable = {line["name"]: line["usable"] for line in page["data"]["material"]["objectives"]}
        assert record.stop() == 0
    [row] = stored(record.state)
    trains = row["split"] == "train"  # by the hash of its session
    assert (usable["sft"], usable["kto"], usable["oapl"]) == (int(trains), int(trains), 0)
    assert (row["agent"], row["policy_version"], row["status"]) == ("coder", "tiny-base", "ok")
    assert (row["fidelity"], row["prompt_ids"]) == ("text_only", None)
    assert row["fidelity_reason"] or row["error"] is None
    for file in record.state.parent.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_a_provider_that_cannot_be_reached_is_told_and_recorded_until_it_is_back(recording):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    record = recording(f"http://127.0.0.1:{port}")
    status, reply = record.chat()
    assert status == 502
    assert f"127.0.0.1:{port}" in json.dumps(reply["error"])
    engine = FakeEngine(gives_ids=False)
    config = uvicorn.Config(engine.app(), host="127.0.0.1", port=port, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 30
        while (answer := record.chat())[0] != 200:
            assert time.monotonic() < until, answer
            time.sleep(0.1)
        assert record.stop() == 0
    finally:
        server.should_exit = True
        thread.join()
    rows = stored(record.state)
    assert (rows[0]["status"] != "ok", rows[-1]["status"]) == (True, "ok")
    assert rows[0]["error"]


def test_an_error_of_the_provider_passes_unchanged(recording):
    refused = b'{"error": {"message": "You have no credit left.", "type": "insufficient_quota"}}'
    engine = FakeEngine(gives_ids=False, failure=(429, refused, {"content-type": "application/json"}))
    with serve(engine.app()) as url:
        record = recording(url)
        assert record.chat() == (429, json.loads(refused))
        assert record.stop() == 0
    [row] = stored(record.state)
    assert (row["status"] != "ok", row["http_status"], row["training_allowed"]) == (True, 429, False)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_an_address_with_tls_is_checked_and_used(recording, tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"), "-days", "2"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(made, check=True, capture_output=True)
    engine = FakeEngine(gives_ids=False)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            engine.app(),
            log_level="error",
            ws="none",
            ssl_keyfile=str(tmp_path / "key.pem"),
            ssl_certfile=str(tmp_path / "cert.pem"),
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            record = recording(f"https://localhost:{port}", SSL_CERT_FILE=str(tmp_path / "cert.pem"))
            assert record.chat(authorization=f"Bearer {SECRET}")[0] == 200
            assert record.stop() == 0
        finally:
            server.should_exit = True
            thread.join()
    assert ssl.OPENSSL_VERSION
    assert [row["status"] for row in stored(record.state)] == ["ok"]


def test_without_an_address_it_says_what_to_write(run):
    told = run("record")
    assert told.code == 2
    assert "nightschool record --upstream" in told.err
    assert run("record", "--upstream", "ftp://somewhere").code == 2


def test_everything_that_was_recorded_is_there_after_it_stopped(recording):
    engine = FakeEngine(gives_ids=False)
    with serve(engine.app()) as url:
        record = recording(url)
        for _ in range(5):
            assert record.chat()[0] == 200
        assert record.stop() == 0
    assert len(stored(record.state)) == 5
    with Store.open(record.state / "store.sqlite") as store, store.read() as conn:
        assert conn.execute(bodies.select()).first() is not None
        assert conn.execute(feedback.select()).first() is None
