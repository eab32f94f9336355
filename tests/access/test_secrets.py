"""What counts as a secret. The examples are put together here, so that no file holds a whole one."""

import secrets as random_source
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.access.personal import KINDS, passes_luhn, passes_mod97
from nightschool.access.secrets import find_secrets, is_secret_name

ALNUM = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC2dE3fG4h"


def removed(text: str) -> list[str]:
    return list(dict.fromkeys(text[span.start : span.end] for span in find_secrets(text)))


@pytest.mark.parametrize(
    "prefix",
    ["sk-", "sk-proj-", "sk-ant-api03-", "hf_", "ghp_", "gho_", "github_pat_", "glpat-", "xai-", "pplx-", "gsk_",
     "npm_", "sk_" + "live_", "rk_" + "test_", "whsec_", "pypi-", "GOCSPX-", "ya29.", "hvs.", "ns-data-", "ns-admin-",
     "xox" + "b-", "lsv2_pt_", "tvly-", "nvapi-"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("use ", " now"), ('{"k": "', '"}'), ("a\n", ","), ("\\n", "\\n")]
)
def test_keys_of_providers(prefix, before, after):
    key = prefix + ALNUM
    assert removed(before + key + after) == [key]


def test_keys_of_fixed_length():
    aws = "AKIA" + "IOSFODNN7EXAMPLQ"
    google = "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q"[:35]
    assert removed(f"{aws} {google}") == [aws, google]
    assert removed(aws + "X") == []  # longer: something else
    slack = "T0123ABCD/B0123ABCD/" + ALNUM[:24]
    assert removed(f"https://hooks.slack.com/services/{slack}") == [slack]
    sendgrid = "SG." + ALNUM[:22] + "." + ALNUM
    assert removed(sendgrid) == [sendgrid]


def test_tokens():
    jwt = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + ALNUM
    assert removed(f"token {jwt}.") == [jwt]
    assert removed(f"Authorization: Bearer {ALNUM}") == [ALNUM]
    assert removed(f"-H 'authorization: bearer {ALNUM}'") == [ALNUM]
    assert removed("the bearer of this letter has waited here") == []


def test_private_keys():
    body = "\n".join([ALNUM] * 3)
    for name in ("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "):
        pem = f"-----BEGIN {name}PRIVATE KEY-----\n{body}\n-----END {name}PRIVATE KEY-----"
        assert removed(f"here: {pem} done") == [pem]
        escaped = pem.replace("\n", "\\n")
        assert removed(f'{{"pem": "{escaped}"}}') == [escaped]
    cut = f"-----BEGIN PRIVATE KEY-----\n{body}"
    assert removed(f"here: {cut}") == [cut]
    assert removed(f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----") == []


def test_passwords_in_urls():
    assert removed("postgres://app:s3cr!t-pw@db.internal:5432/x") == ["s3cr!t-pw"]
    assert removed("https://:hunter2@host/") == ["hunter2"]
    for harmless in (
        "https://host:8080/a@b",
        "postgres://user:password@localhost/db",
        "redis://u:$PW@h",
        "see http://a.b/c",
    ):
        assert removed(harmless) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"password": "hunter2"}', "hunter2"),
        ('{\\"password\\": \\"letmein\\"}', "letmein"),
        ("PASSWORD=tr0ub4dor", "tr0ub4dor"),
        ("password: tr0ub4dor&3", "tr0ub4dor"),
        ("DB_PASSWD='swordfish'", "swordfish"),
        ("client_secret = 0123456789abcdef", "0123456789abcdef"),
        ('"x-api-key": "0123456789abcdef0123456789abcdef"', "0123456789abcdef0123456789abcdef"),
        ("?access_token=a1b2c3d4e5&x=1", "a1b2c3d4e5"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzz", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzz"),
        (f"token: {ALNUM}", ALNUM),
        ("Authorization: Basic", None),
        ("Cookie: session=ab12cd34", "session=ab12cd34"),
    ],
)
def test_assignments(text, value):
    assert removed(text) == ([] if value is None else [value])


@pytest.mark.parametrize(
    "text",
    [
        "Password: must be at least 8 characters long",
        'api_key = os.environ["OPENAI_API_KEY"]',
        "api_key=YOUR_API_KEY_HERE1",
        "password = get_password(user, 1)",
        'password="password"',
        '"api_key": "<your key 1>"',
        "secret: ${SECRET_1}",
        "max_tokens: 4096, completion_tokens=128",
        "primary_key = 123456789012345678901234",
        "the key: everything depends on 2 factors",
        f"token: {uuid.UUID(int=2**100 + 7)}",
        "session key = " + "0123456789abcdef" * 4,  # a hash
        "public_key: " + ALNUM,
        "tokenizer=smollm2-135m-instruct",
        "sk-learn-is-a-name-of-many-words-and-no-key",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "[redacted:api_key] password=[redacted:password]",
        "secretary: anna2",
        '"external_key": "tau_bench:gpt-4o-airline:3f9c1b7e/step-15"',
    ],
)
def test_what_is_no_secret(text):
    assert removed(text) == []


@pytest.mark.parametrize("name", ["password", "API_KEY", "x-api-key", "clientSecret", "Authorization", "refresh_token"])
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["token", "key", "tokens", "max_tokens", "public_key", "primary_key", "content", "author"]
)
def test_other_names(name):
    assert not is_secret_name(name)


@given(
    st.uuids(), st.binary(min_size=32, max_size=32), st.sampled_from(["id", "hash", "sha256", "token", "etag", "call"])
)
def test_no_hash_or_uuid_is_a_secret(value, digest, name):
    assert removed(f"{name}={value} and {name}: {digest.hex()}, '{name}': '{value.hex}'") == []


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    for span in find_secrets(text):
        assert 0 <= span.start < span.end <= len(text)


@pytest.mark.parametrize(
    "unit",
    [
        "password: ",
        "sk-",
        "eyJaaaaaaaa.",
        "://a:",
        "bearer ",
        "-----BEGIN PRIVATE KEY-----",
        'key=\\\\\\"',
        "a.b-c_d",
        "token :",
    ],
)
def test_the_work_grows_with_the_text_alone(unit):
    """Four times the text takes about four times as long; a pattern that tried again and again would take sixteen."""

    def seconds(text: str) -> float:
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            find_secrets(text)
            best = min(best, time.process_time() - begun)
        return best

    small = unit * (40_000 // len(unit))
    assert seconds(small * 4) <= 9 * seconds(small) + 0.02


def test_luhn_and_mod_97():
    # from the right 7+4+3+3+8+4+9+5 = 43 as they are, 6 6 4 0 8 1 3 4 doubled give 3+3+8+0+7+2+6+8 = 37; 80 ends in 0
    assert passes_luhn([int(char) for char in "4539148803436467"])
    assert not passes_luhn([int(char) for char in "8273123273520569"])
    assert not passes_luhn([0] * 16)
    assert passes_mod97("GB82WEST12345698765432")  # the example of the standard
    assert not passes_mod97("GB82WEST12345698765433")


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("email", "write to Ann.B+x@mail.example.org.", ["Ann.B+x@mail.example.org"]),
        ("email", "@home, a@b, x @y.de", []),
        ("phone", "call +49 (30) 1234-5678 or 415-555-0134", ["+49 (30) 1234-5678", "415-555-0134"]),
        ("phone", "or (212) 555-0187.", ["(212) 555-0187"]),
        ("phone", "030 1234567 and 020 7946 0958", ["030 1234567", "020 7946 0958"]),
        ("phone", "2024-05-17, 10.3.5.147, order 12345678901, 3.14159, #W0123456789", []),
        ("card", "4539 1488 0343 6467 or 4539148803436467", ["4539 1488 0343 6467", "4539148803436467"]),
        ("card", "4539 1488 0343 6468, 20240517123456, id-4539148803436467", []),
        ("iban", "GB82 WEST 1234 5698 7654 32, please", ["GB82 WEST 1234 5698 7654 32"]),
        ("iban", "DE89370400440532013000!", ["DE89370400440532013000"]),
        ("iban", "GB82 WEST 1234 5698 7654 33, XX12 3456 7890 1234", []),
        ("ip", "from 203.0.113.9 and 2001:db8::8a2e:370:7334", ["203.0.113.9", "2001:db8::8a2e:370:7334"]),
        ("ip", "127.0.0.1, 999.1.1.1, 1.2.3, 12:30:45, ::1, a::b is C++", []),
    ],
)  # fmt: skip
def test_personal_data(kind, text, found):
    assert [text[span.start : span.end] for span in KINDS[kind](text)] == found


@given(st.sampled_from(sorted(KINDS)), st.text(alphabet="0123456789 .-+()@:abcAD/", max_size=200))
def test_any_text_is_searched_for_personal_data(kind, text):
    for span in KINDS[kind](text):
        assert 0 <= span.start < span.end <= len(text)


def test_a_new_key_of_ours_is_one():
    assert removed(f"ns-feedback-{random_source.token_urlsafe(32)}") != []
