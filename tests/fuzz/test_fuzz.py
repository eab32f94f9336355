"""The parsers under any input: quickly with hypothesis, and for minutes with a fuzzer that watches the branches."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(__file__).parent
NUM_RUNS = 30_000
LIMIT_S = 60


def load_targets() -> Any:
    spec = spec_from_file_location("fuzz_targets", FOLDER / "targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


targets = load_targets()
NAMES = sorted(targets.TARGETS)
# Bytes alone never come near JSON: words that the formats know, in any order and damaged at any place.
WORDS = [
    b"data:", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b": c", b"event: x", b"[DONE]", b"{", b"}", b"[", b"]", b",", b":",
    b'"choices"', b'"index"', b'"delta"', b'"message"', b'"content"', b'"tool_calls"', b'"function"', b'"name"',
    b'"arguments"', b'"id"', b'"token_ids"', b'"logprobs"', b'"usage"', b'"error"', b'"model"', b'"prompt_token_ids"',
    b"null", b"true", b"0", b"1e999", b"NaN", b"-1", b'"x"', b'"\\ud83d"', b'"\\u0000"', b"\xf0\x9f\x98\x80",
    b"\xf0\x9f", b"<tool_call>", b"</tool_call>",
]  # fmt: skip
damaged = st.lists(st.sampled_from(WORDS) | st.binary(max_size=3), max_size=40).map(b"".join)


@st.composite
def bent_seeds(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """One of the beginnings with a stretch of it replaced."""
    seed = draw(st.sampled_from(seeds))
    start = draw(st.integers(0, len(seed)))
    end = draw(st.integers(start, len(seed)))
    return seed[:start] + draw(damaged) + seed[end:]


@pytest.mark.parametrize("name", NAMES)
def test_no_input_breaks_a_promise(name):
    @given(st.binary(max_size=200) | damaged | bent_seeds(targets.SEEDS[name]))
    @settings(max_examples=100)
    def hold(data: bytes) -> None:
        targets.TARGETS[name](data)

    hold()


DEEP = 200_000
LONG = [
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"data: " + b"[" * DEEP + b"\n\n",
    b'data: {"choices":' + b"[" * DEEP + b"\n\n",
    b"<tool_call>" + b"[" * DEEP + b"</tool_call>",
    b"<tool_call>" * DEEP,
    b"\x03" + b"\r\n" * DEEP,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", range(len(LONG)))
def test_depth_and_length_break_nothing(name, which):
    targets.TARGETS[name](LONG[which])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fuzzer_that_watches_the_branches_finds_nothing(name, tmp_path):
    # Linux counts a parent's peak memory as its child's, so the fuzzer's own limit would see that of the tests before.
    memory = ["-rss_limit_mb=0", "-malloc_limit_mb=1024"]
    words = [f"-runs={NUM_RUNS}", f"-max_total_time={LIMIT_S}", "-timeout=10", "-seed=1", *memory]
    command = [sys.executable, str(FOLDER / "run.py"), name, *words, f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S + 120)
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    assert (done.returncode, found) == (0, []), done.stdout[-2000:] + done.stderr[-4000:]
