from nightschool.store import memo as module
from nightschool.store.memo import Memo


def test_what_is_used_lives_on_and_what_is_not_is_dropped(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    memo = Memo()
    for number in range(3):
        memo.keep_node(("root", b"%d" % number), number)
    memo.keep_variant(("h", b"0"), 7)
    memo.keep_node(("root", b"3"), 3)  # the first three grow old
    assert memo.node(("root", b"0")) == 0, "found in the old generation, and young again"
    assert memo.variant(("h", b"0")) == 7
    for number in (4, 5):
        memo.keep_node(("root", b"%d" % number), number)  # with 3 and 0 the young one is full: 1 and 2 go
    assert (memo.variant(("h", b"0")), memo.variant(("h", b"1"))) == (7, None)
    assert [memo.node(("root", b"%d" % number)) for number in range(6)] == [0, None, None, 3, 4, 5]


def test_many_bytes_end_a_generation_too(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    memo = Memo()
    for number in range(9):
        memo.keep_node(("root", bytes([number]) * 30), number)  # 120 bytes each by its count
    assert [memo.node(("root", bytes([number]) * 30)) for number in (6, 7, 8)] == [None, 7, 8]
    memo.clear()
    assert memo.node(("root", bytes([8]) * 30)) is None
