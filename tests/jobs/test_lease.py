import pytest

from nightschool.errors import BusyError
from nightschool.jobs import lease
from nightschool.jobs.lease import claim, enqueue, fail, finish, heartbeat, load_job


class Clock:
    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


@pytest.fixture
def do(store):
    """Call a job function inside a write of a fresh store."""
    return lambda function, *args, **kwargs: store.write(lambda conn: function(conn, "default", *args, **kwargs))


def test_a_key_is_one_job(do, clock):
    first = do(enqueue, "train", "night 1", {"agent": "shop"})
    assert do(enqueue, "train", "night 1", {"agent": "other"}) == first
    assert do(enqueue, "train", "night 2", {}) != first
    assert do(load_job, first).payload == {"agent": "shop"}
    assert do(load_job, "none") is None


def test_a_job_is_claimed_by_one_worker_oldest_first(do, clock):
    ids = [do(enqueue, kind, str(n), {}) for n, kind in enumerate(["train", "gate", "train"])]
    assert do(claim, ["mine"], "a", 10) is None
    assert do(claim, ["train"], "a", 10).id == ids[0]
    assert do(claim, ["train"], "b", 10).id == ids[2]
    assert do(claim, ["train"], "c", 10) is None
    assert do(claim, ["gate", "train"], "c", 10).id == ids[1]


def test_a_heartbeat_holds_the_lease_and_a_lost_lease_is_claimed_again(do, clock):
    do(enqueue, "train", "k", {})
    job = do(claim, ["train"], "a", 10)
    clock.now += 9
    do(heartbeat, job, 10)
    clock.now += 9  # 18 s after the claim, within the renewed lease
    assert do(claim, ["train"], "b", 10) is None
    clock.now += 2
    again = do(claim, ["train"], "a", 10)  # the same owner's name: the attempt tells them apart
    assert again.attempts == 2
    for report in ((finish, job, {}), (fail, job, "late"), (heartbeat, job, 10)):
        with pytest.raises(BusyError, match="not held"):
            do(*report)
    do(finish, again, {"digest": "d"})
    done = do(load_job, job.id)
    assert (done.state, done.result) == ("done", {"digest": "d"})
    with pytest.raises(BusyError):
        do(finish, again, {"digest": "other"})


def test_a_failure_is_retried_later_each_time_until_the_attempts_are_spent(do, clock):
    job_id = do(enqueue, "train", "k", {})
    for delay in (5, 10):  # 5 s * 2 ** (attempt - 1)
        do(fail, do(claim, ["train"], "a", 60), "no engine")
        clock.now += delay - 1
        assert do(claim, ["train"], "a", 60) is None
        clock.now += 1
    do(fail, do(claim, ["train"], "a", 60), "no engine at all")
    clock.now += 1000
    assert do(claim, ["train"], "a", 60) is None
    job = do(load_job, job_id)
    assert (job.state, job.attempts, job.error) == ("failed", 3, "no engine at all")


def test_a_failure_that_cannot_be_cured_is_final(do, clock):
    job_id = do(enqueue, "train", "k", {})
    do(fail, do(claim, ["train"], "a", 60), "no data", retry=False)
    clock.now += 1000
    assert do(claim, ["train"], "a", 60) is None
    assert do(load_job, job_id).state == "failed"


def test_a_job_that_kills_its_workers_ends(do, clock):
    job_id = do(enqueue, "train", "k", {})
    for _ in range(3):
        assert do(claim, ["train"], "a", 10).id == job_id
        clock.now += 10
    assert do(claim, ["train"], "a", 10) is None
    job = do(load_job, job_id)
    assert job.state == "failed"
    assert "vanished" in job.error
