"""Counts that took long are kept; quick ones are counted anew."""

import threading
import time

from nightschool.dashboard.counts import LONGEST_S, PATIENCE, QUICK_S, Counts


class World:
    """A clock, and counts that take as much work as they are told."""

    def __init__(self, takes_s: float) -> None:
        self.at, self.work, self.takes_s, self.counted = 0.0, 0.0, takes_s, 0
        self.counts = Counts(clock=lambda: self.at, effort=lambda: self.work)

    def look(self, key: str = "k") -> int:
        return self.counts.get(key, self.at, self.count)["number"]

    def count(self) -> dict:
        self.work += self.takes_s
        self.counted += 1
        return {"number": self.counted}


def test_a_quick_count_is_made_each_time():
    world = World(QUICK_S / 2)
    assert [world.look() for _ in range(3)] == [1, 2, 3]


def test_a_long_count_is_kept_in_proportion_and_tells_its_age():
    world = World(0.25)
    assert world.look() == 1
    world.at = PATIENCE * 0.25 - 0.01  # 50 s for 0.25 s of work
    assert world.look() == 1
    assert world.counts.get("k", world.at, world.count)["counted_at"] == 0.0
    world.at += 0.02
    assert world.look() == 2
    assert world.look("other") == 3


def test_nothing_is_kept_for_long():
    world = World(3600.0)
    world.look()
    world.at = LONGEST_S + 1
    assert world.look() == 2


def test_what_is_no_longer_kept_is_forgotten():
    world = World(1.0)
    for key in range(50):
        world.look(str(key))
        world.at += LONGEST_S + 1
    assert len(world.counts._counts) == 1


def test_of_many_who_ask_at_once_one_counts():
    kept, counted, begun = Counts(effort=lambda: len(counted) * 1.0), [], threading.Barrier(8)

    def count() -> dict:
        time.sleep(0.05)
        counted.append(1)
        return {"number": len(counted)}

    def ask() -> None:
        begun.wait()
        assert kept.get("k", 0.0, count)["number"] == 1

    crowd = [threading.Thread(target=ask) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len(counted) == 1


def test_a_count_that_fails_is_not_kept():
    world = World(1.0)

    def fail() -> dict:
        raise ValueError("busy")

    for _ in range(2):
        try:
            world.counts.get("k", 0.0, fail)
        except ValueError:
            continue
        raise AssertionError
    assert world.look() == 1
