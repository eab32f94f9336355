import pytest

from nightschool.access.tokens import admin_token, is_loopback, refuse_public_bind
from nightschool.errors import ConfigError, RefusedError


def test_admin_token_is_made_once_and_for_its_owner_alone(tmp_path):
    token = admin_token(tmp_path / "state")
    assert len(token) > 40
    assert admin_token(tmp_path / "state") == token
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "token").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["token"]


def test_token_that_others_may_read_is_not_used(tmp_path):
    admin_token(tmp_path)
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        admin_token(tmp_path)


def test_empty_token_is_not_used(tmp_path):
    (tmp_path / "token").touch(0o600)
    with pytest.raises(ConfigError, match="holds no token"):
        admin_token(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host):
    assert is_loopback(host)
    refuse_public_bind(host, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org", ""])
def test_public(host):
    assert not is_loopback(host)
    with pytest.raises(RefusedError, match="NIGHTSCHOOL_API_KEY"):
        refuse_public_bind(host, False)
    refuse_public_bind(host, True)
