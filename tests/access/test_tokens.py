import pytest

from nightschool.access.tokens import Access, Role, admin_token, is_loopback, refuse_public_bind
from nightschool.errors import ConfigError, RefusedError


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


def test_admin_token_is_made_once_and_for_its_owner_alone(tmp_path):
    token = admin_token(tmp_path / "state")
    assert len(token) > 40
    assert admin_token(tmp_path / "state") == token
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


def test_roles():
    access = Access("a-secret", "d-secret")
    assert access.role(bearer("a-secret")) == Role.ADMIN
    assert access.role(bearer("d-secret")) == Role.DATA
    for headers in (bearer("x"), bearer(""), [], [(b"authorization", b"Basic a-secret")]):
        assert access.role(headers) is None
    assert Access("a-secret").role(bearer("")) is None


def test_use_without_token_is_for_loopback_without_data_token():
    assert Access("a").may_use(None, "127.0.0.1")
    assert not Access("a").may_use(None, "10.0.0.7")
    assert not Access("a", "d").may_use(None, "127.0.0.1")
    assert Access("a", "d").may_use(Role.DATA, "10.0.0.7")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host):
    assert is_loopback(host)
    refuse_public_bind(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org", ""])
def test_public(host):
    assert not is_loopback(host)
    with pytest.raises(RefusedError, match="NIGHTSCHOOL_API_KEY"):
        refuse_public_bind(host, None)
    refuse_public_bind(host, "key")
