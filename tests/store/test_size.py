import tracemalloc

import pytest

from nightschool.store.matching import ordered_json, sorted_json

MESSAGE = {"role": "user", "content": "please " * 20}  # 169 bytes of JSON


@pytest.mark.parametrize("spell", [sorted_json, ordered_json])
def test_what_is_remembered_of_a_message_takes_its_own_size(spell):
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [spell(MESSAGE) for _ in range(500)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(kept) < 400  # 169 bytes, an object's head of 33, a place in the list
