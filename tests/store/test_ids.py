import threading
import time
import uuid

from nightschool.store import ids


def test_ids_are_uuid7_that_carry_the_time():
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(ids.new_id())
    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert before <= made.int >> 80 <= after


def test_ids_grow_even_when_the_clock_steps_back(monkeypatch):
    first = ids.new_id()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 5)
    assert first < ids.new_id() < ids.new_id()


def test_threads_never_make_the_same_id():
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(ids.new_id() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2000
