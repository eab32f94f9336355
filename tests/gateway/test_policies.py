import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nightschool.releases.aliases import start
from nightschool.store import schema
from nightschool.types import Purpose, Split

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


def move_alias(gateway, digest: str, agent: str = "shop") -> None:
    """Point the alias at `digest`; the rules of promotion are tested with the releases."""
    aliases = schema.aliases

    def write(conn) -> None:
        where = (aliases.c.tenant == "default", aliases.c.agent == agent)
        conn.execute(aliases.delete().where(*where))
        row = {"tenant": "default", "agent": agent, "digest": digest, "release_id": "r", "updated_at": time.time()}
        conn.execute(aliases.insert(), row)

    gateway.store.write(write)


def open_exam(gateway, candidate: str, state: str = "open") -> str:
    exam_id = f"exam-{state}"
    row = {"tenant": "default", "id": exam_id, "agent": "shop", "candidate": candidate, "incumbent": "base"}
    row |= {"rule": {}, "state": state, "opened_at": 1.0}
    gateway.store.write(lambda conn: conn.execute(schema.exams.insert(), row))
    return exam_id


def ask_exam(gateway, model: str, exam_id: str, key: str | None = None):
    headers = {"X-Nightschool-Exam": exam_id, "Authorization": f"Bearer {key or gateway.admin}"}
    return gateway.chat(ASK | {"model": model}, headers)


def test_first_use_loads_the_adapter_once(gateway):
    digest = gateway.install(1)
    start(gateway.store, "shop", digest, "me")
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: gateway.chat(ASK), range(16)))
    assert {headers["x-nightschool-policy"] for _, headers, _ in replies} == {digest}
    assert gateway.engine.loads == [digest]
    assert gateway.engine.adapters[digest] == str(gateway.state / "adapters" / digest)
    assert json.loads(replies[0][2])["model"] == "shop"
    assert gateway.recorded(replies[0][1]["x-nightschool-exchange"]).policy_version == digest


def test_alias_moves_within_a_fifth_of_a_second(gateway):
    first, second = gateway.install(1), gateway.install(2)
    move_alias(gateway, first)
    assert gateway.chat(ASK)[1]["x-nightschool-policy"] == first
    move_alias(gateway, second)
    time.sleep(0.2)
    assert gateway.chat(ASK)[1]["x-nightschool-policy"] == second


def test_50_requests_during_alias_moves_all_succeed_and_name_their_version(gateway):
    digests = [gateway.install(i) for i in range(3)]
    move_alias(gateway, digests[0])
    gateway.engine.delay_s = 0.1
    stop = threading.Event()

    def mover() -> None:
        position = 0
        while not stop.is_set():
            position += 1
            move_alias(gateway, digests[position % 3])
            time.sleep(0.05)

    thread = threading.Thread(target=mover)
    thread.start()
    try:
        with ThreadPoolExecutor(50) as pool:
            replies = list(pool.map(lambda i: gateway.chat(ASK | {"stream": i % 2 == 0}), range(300)))
    finally:
        stop.set()
        thread.join()
    assert {status for status, _, _ in replies} == {200}
    served = {headers["x-nightschool-policy"] for _, headers, _ in replies}
    assert served <= set(digests)
    assert len(served) >= 2
    assert sorted(gateway.engine.loads) == sorted(set(gateway.engine.loads))


def test_engine_that_restarted_gets_its_adapter_again(gateway):
    digest = gateway.install(1)
    move_alias(gateway, digest)
    assert gateway.chat(ASK)[0] == 200
    gateway.engine.adapters.clear()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: gateway.chat(ASK | {"stream": True}), range(8)))
    assert [status for status, _, _ in replies] == [200] * 8
    assert gateway.engine.loads == [digest, digest]


def test_gateway_that_restarted_finds_its_adapter_loaded(gateway):
    digest = gateway.install(1)
    gateway.engine.adapters[digest] = "loaded by the gateway before"
    move_alias(gateway, digest)
    assert gateway.chat(ASK)[0] == 200
    assert gateway.engine.loads == []


def test_least_recently_used_goes_and_one_in_use_never(open_gateway):
    gateway = open_gateway(max_adapters=2)
    digests = [gateway.install(i) for i in range(4)]
    for i, digest in enumerate(digests):
        move_alias(gateway, digest, f"agent-{i}")
    gateway.engine.delay_s = 3.0
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(gateway.chat, ASK | {"model": "agent-0"})
        while gateway.engine.num_running == 0:
            time.sleep(0.01)
        gateway.engine.delay_s = 0.0
        for i in (1, 2, 3):
            assert gateway.chat(ASK | {"model": f"agent-{i}"})[0] == 200
        # Adapter 0 is the oldest but in use, so 1 and then 2 made room.
        assert gateway.engine.unloads == [digests[1], digests[2]]
        assert slow.result()[0] == 200
    assert gateway.chat(ASK | {"model": "agent-1"})[0] == 200
    assert gateway.engine.unloads[2:] == [digests[0]]


def test_changed_adapter_is_refused_before_the_engine_sees_it(gateway):
    digest = gateway.install(1)
    path = gateway.state / "adapters" / digest / "adapter_config.json"
    path.write_text(json.dumps({"target_modules": ["q_proj"], "r": 8}))
    move_alias(gateway, digest)
    status, headers, body = gateway.chat(ASK)
    assert (status, json.loads(body)["error"]["code"]) == (502, "adapter_unavailable")
    assert gateway.engine.loads == []
    assert gateway.row(headers["x-nightschool-exchange"]).status == "error"


def test_exam_serves_the_candidate_and_marks_its_rows(gateway):
    digest = gateway.install(1)
    exam_id = open_exam(gateway, digest)
    for model, policy in ((f"shop@{digest}", digest), ("shop@base", "base")):
        status, headers, body = ask_exam(gateway, model, exam_id)
        assert (status, headers["x-nightschool-policy"], json.loads(body)["model"]) == (200, policy, model)
        exchange = gateway.recorded(headers["x-nightschool-exchange"])
        assert (exchange.purpose, exchange.split, exchange.exam_id) == (Purpose.EXAM, Split.GATE, exam_id)
        assert (exchange.agent, exchange.policy_version) == ("shop", policy)


def test_an_exam_just_opened_is_known_at_once(gateway):
    gateway.chat(ASK)  # fills the cache of names
    digest = gateway.install(1)
    assert ask_exam(gateway, f"shop@{digest}", open_exam(gateway, digest))[0] == 200


@pytest.mark.parametrize("case", ["no admin", "unknown exam", "closed exam", "other digest", "no digest", "no exam"])
def test_exam_is_refused(gateway, case):
    digest, other = gateway.install(1), gateway.install(2)
    exam_id = open_exam(gateway, digest, "closed" if case == "closed exam" else "open")
    model = {"other digest": f"shop@{other}", "no digest": "shop"}.get(case, f"shop@{digest}")
    if case == "no exam":
        status, _, body = gateway.chat(ASK | {"model": model}, {"Authorization": f"Bearer {gateway.admin}"})
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    else:
        named = "exam-x" if case == "unknown exam" else exam_id
        status, _, body = ask_exam(gateway, model, named, "any" if case == "no admin" else None)
        assert (status, json.loads(body)["error"]["code"]) == (403, "exam_refused")
    assert gateway.engine.bodies == []


def test_models_are_the_agents(gateway):
    move_alias(gateway, gateway.install(1), "travel")
    with gateway.client() as client:
        assert [model.id for model in client.models.list()] == ["shop", "travel"]
