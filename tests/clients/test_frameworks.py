"""Agent frameworks, each as a program of its own that knows nothing of Nightschool but a base_url."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fronts import Front
from loop_checks import check_feedback, check_loop
from speaking import ANSWER

PROGRAMS = Path(__file__).parent / "programs"
PACKAGES = {"with_openai_agents": "agents", "with_pydantic_ai": "pydantic_ai", "with_langgraph": "langgraph"}


def play(program: str, front: Front, *words: str) -> str:
    """Run a program to its end; what it printed."""
    if find_spec(PACKAGES[program]) is None:
        pytest.skip(f"{PACKAGES[program]} is not installed")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("NIGHTSCHOOL_", "OPENAI_"))
    }
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / f"{program}.py"), f"{front.url}/v1", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("way", ["plain", "streamed"])
@pytest.mark.parametrize("program", sorted(PACKAGES))
def test_a_clerk_calls_its_tool_and_tells_the_result(front: Front, program: str, way: str):
    assert play(program, front, way) == ANSWER
    _, answered = check_loop(front)
    assert answered.upstream_id
    check_feedback(front, answered.upstream_id, answered)


@pytest.mark.parametrize("way", ["plain", "streamed"])
def test_a_clerk_that_speaks_responses_does_the_same(front: Front, way: str):
    assert play("with_openai_agents", front, way, "responses") == ANSWER
    check_loop(front)
