from pathlib import Path

import pytest

from nightschool.config import Config, load_config
from nightschool.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_defaults_without_a_file():
    assert load_config(environment={}) == Config()
    assert Config().section("gate") == {}


def test_the_file_then_the_environment():
    Path("nightschool.toml").write_text(
        'agent = "shop"\nport = 1\nmodel = "a/b"\n[gate]\ncustomers = 40\n[gate.margins]\nrefusals = 3\n'
    )
    found = load_config(environment={"NIGHTSCHOOL_PORT": "2", "NIGHTSCHOOL_STATE": "~/kept", "NIGHTSCHOOL_HOST": ""})
    assert (found.agent, found.port, found.model) == ("shop", 2, "a/b")
    assert found.state == Path.home() / "kept"
    assert found.host == "127.0.0.1", "an empty variable says nothing"
    assert found.section("gate") == {"customers": 40, "margins": {"refusals": 3}}
    found.section("gate")["customers"] = 1
    assert found.section("gate")["customers"] == 40, "a section is a copy"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("prot = 8700", "'prot' is not a setting."),
        ("[gaet]\ncustomers = 1", "'gaet' is not a setting."),
        ("gate = 3", "'gate' is not a table."),
        ("port = true", "port True is out of range."),
        ("port = 65536", "port 65536 is out of range."),
        ('port = "8700"', "port '8700' is out of range."),
        ('state = ""', "state is ''."),
        ("agent = 3", "agent is 3."),
        ('engine_url = "localhost:8000"', "'localhost:8000' is no engine's address."),
        ("port = ", "nightschool.toml is not TOML."),
    ],
)
def test_what_is_wrong_is_named(text, what):
    Path("nightschool.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(environment={})
    assert caught.value.what == what
    assert caught.value.next_step


def test_a_named_file_must_exist_and_a_port_must_be_a_number():
    with pytest.raises(ConfigError, match=r"other\.toml cannot be read"):
        load_config(Path("other.toml"), {})
    with pytest.raises(ConfigError, match="NIGHTSCHOOL_PORT"):
        load_config(environment={"NIGHTSCHOOL_PORT": "http"})
