"""Files as they come: broken, cut off, of another kind, and larger than a window."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.errors import InputError, MissingError
from nightschool.imports import reading
from nightschool.imports.reading import read_again, read_records

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_one_record_a_line_and_a_bad_line_is_told(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": \n{bad}\n{"a": "\xff"}\n{"a": 2}')
    found = list(read_records(path))
    assert [(raw.line, raw.value, raw.problem) for raw in found] == [
        (1, {"a": 1}, None),
        (3, None, "cut off"),
        (4, None, "not JSON"),
        (5, None, "not UTF-8"),
        (6, {"a": 2}, None),
    ]
    assert found[4].data == b'{"a": 2}'


def test_a_line_without_end_is_skipped_and_never_held(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "' + b"x" * 5000 + b'"}\n{"a": 2}\n')
    found = list(read_records(path))
    assert [(raw.line, raw.value) for raw in found] == [(1, {"a": 1}), (2, None), (3, {"a": 2})]
    assert found[1].problem is not None
    assert found[1].data == b""


@pytest.mark.parametrize("suffix", ["json", "txt"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_and_documents_are_read_one_by_one(tmp_path, monkeypatch, suffix, indent):
    monkeypatch.setattr(reading, "CHUNK_BYTES", 7)  # every boundary falls inside some value
    values = [{"ä": "日本語", "n": 12345}, {"b": [1, 2.5e3, None, "]", '"']}, {"c": {}}]
    array = tmp_path / f"array.{suffix}"
    array.write_text(json.dumps(values, indent=indent, ensure_ascii=False), encoding="utf-8")
    documents = tmp_path / f"documents.{suffix}"
    documents.write_text("\n".join(json.dumps(v, indent=indent, ensure_ascii=False) for v in values), encoding="utf-8")
    for path in (array, documents):
        found = list(read_records(path))
        assert [raw.value for raw in found] == values
        content = path.read_bytes()
        assert all(content[raw.offset : raw.offset + len(raw.data)] == raw.data for raw in found)
        assert [raw.line for raw in found] == [content[: raw.offset].count(b"\n") + 1 for raw in found]
        places = [(raw.line, raw.offset, len(raw.data)) for raw in found]
        assert [raw.value for raw in read_again(path, places)] == values


@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(1, 40))
def test_whatever_the_window_the_array_is_the_same(tmp_path_factory, values, chunk):
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "CHUNK_BYTES", chunk)
        assert [raw.value for raw in read_records(path)] == values


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"", "It is empty"),
        ("a.jsonl", b" \n ", "nothing but space"),
        ("a.json", '[{"a": 1}]'.encode("utf-16"), "UTF-16"),
        ("a.json", b"\x1f\x8b\x08\x00", "gzip"),
        ("a.json", b"PAR1\x00", "Parquet"),
        ("a.json", b'[{"a":1}\x00]', "zero bytes"),
        ("a.json", b'[{"a": 1},\n{"a": ', "cut off at line 2"),
        ("a.json", b'[{"a": 1},\n\n{"a" 2}]', "not JSON at line 3"),
        ("a.json", b'[{"a": 1}\n{"a": 2}]', "without a comma at line 2"),
        ("a.json", b'[{"a": 1}', "has no end at line 1"),
        ("a.json", b'[{"a": 1}] 7', "follows the array"),
        ("a.json", b'[{"a": 1},\n"\xe9"]', "not UTF-8 at line 2"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_refused_and_the_line_named(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(read_records(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(MissingError):
        list(read_records(tmp_path / "none.json"))


def test_a_mark_at_the_start_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert [raw.value for raw in read_records(path)] == [{"a": 1}]
