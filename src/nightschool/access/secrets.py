"""Finding secrets in text: keys of known providers, private keys, tokens, passwords in URLs, assignments.

A key is an unbroken run of at least 20 characters, and prose has few of those. So the text is cut into its long
runs, in C, and a run is looked at more closely only where it begins as keys of some provider do. Everything else
starts from a short literal (`://`, `token`) that is looked for in C as well. Patterns are tried at such places
alone and read a bounded stretch from there: the work is linear in the text, whatever the text is.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MAX_NAME_CHARS = 48
LEAST_RANDOM_CHARS = 20
LEAST_ENTROPY = 3.5  # bits per character of a value that is random rather than words


class Span(NamedTuple):
    """What is to be removed: `text[start:end]`, and what it is."""

    start: int
    end: int
    kind: str


class Rule(NamedTuple):
    """How the keys of some provider look. With `dense`, letters and digits must both occur: words do not count."""

    prefix: str
    pattern: re.Pattern[str]
    kind: str = "api_key"
    dense: bool = False


def _rules(body: str, *prefixes: str, kind: str = "api_key", dense: bool = False) -> list[Rule]:
    return [Rule(prefix, re.compile(re.escape(prefix) + body), kind, dense) for prefix in prefixes]


RULES: tuple[Rule, ...] = (
    *_rules(r"[A-Za-z0-9_\-]{20,}", "sk-", "csk-", "xai-", "pplx-", "tvly-", "nvapi-", "glpat-", dense=True),
    *_rules(r"[A-Za-z0-9_\-]{20,}", "ns-data-", "ns-feedback-", "ns-admin-", "ns-secret-"),
    *_rules(r"[A-Za-z0-9]{20,}", "hf_", "gsk_", "r8_", "npm_", "glsa_", "figd_", "fw_", dense=True),
    *_rules(r"[A-Za-z0-9_\-]{16,}", "pcsk_", "lin_api_", "lsv2_pt_", "lsv2_sk_", "tgp_v1_", "dckr_pat_"),
    *_rules(r"[A-Za-z0-9]{36,}", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *_rules(r"[A-Za-z0-9_]{22,}", "github_pat_"),
    *_rules(r"[A-Z0-9]{16}(?![A-Za-z0-9])", "AKIA", "ASIA"),
    *_rules(r"[A-Za-z0-9_\-]{35}", "AIza"),
    *_rules(r"[A-Za-z0-9_\-]{20,}", "ya29.", "GOCSPX-", "hvs.", "NRAK-", "PMAK-", "ATATT3"),
    *_rules(r"[A-Za-z0-9]{16,}", "sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_", "shpat_", "ntn_"),
    *_rules(r"[a-f0-9]{32,64}(?![A-Za-z0-9])", "dapi", "dop_v1_", "sbp_"),
    *_rules(r"[A-Za-z0-9\-]{15,}", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxe-", "xapp-", dense=True),
    *_rules(r"[A-Za-z0-9_\-]{40,}", "pypi-"),
    *_rules(r"[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}", "SG."),
    *_rules(r"[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*", "eyJ", kind="jwt"),
    *_rules(r"[A-Z0-9]{20,}", "AGE-SECRET-KEY-1", kind="private_key"),
)
PREFIXES = tuple(rule.prefix for rule in RULES)
RUN = re.compile(r"[A-Za-z0-9_.\-]{20,}")

# Secrets that are no single run, each by a literal that it contains. The group `s`, else all of it, is the secret.
PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", re.S)
URL_PASSWORD = re.compile(r"""://[^\s/@:"'\\<>]{0,100}:(?P<s>[^\s/@"'\\<>]{1,200})@""")
WEBHOOK = re.compile(r"hooks\.slack\.com/services/(?P<s>T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,})")
BEARER = re.compile(r"bearer\s{1,3}(?P<s>[A-Za-z0-9._~+/=\-]{16,})", re.I)

# `name = value` in code, settings, headers, query strings and JSON, also JSON inside a string.
STEMS = ("key", "token", "secret", "passw", "passphrase", "pwd", "credential", "authorization", "cookie")
ASSIGNED = re.compile(
    r"""(?P<rest>[A-Za-z0-9_\-]{0,24})(?P<close>\\{0,3}["']?)\s{0,4}(?:=>|:=|[:=])\s{0,4}"""
    r"""(?:(?P<open>\\{0,3}["'`])(?P<quoted>[^"'`\\\n]{1,400})|(?P<bare>[^\s"'`,;&\\(){}\[\]<>]{1,400}))"""
)
NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-.")
STRONG = re.compile(
    r"apikeys?$|secret|passw(?:or)?d$|passphrase$|pwd$|credentials?$|authorization$|cookie$"
    r"|(?:access|auth|refresh|bearer|id|session|bot|personal|api)tokens?$"
    r"|(?:access|private|signing|encryption|account|master|service|ssh|license)keys?$"
)
HARMLESS = re.compile(r"public|primary|foreign|secretary|secretname|secretid$|secrets?manager|externalkey$")
WEAK = re.compile(r"(?:token|key)$")
PLACEHOLDER = re.compile(
    r"[\[<{$%*.]|x{3,}|your|my[-_]|example|changeme|placeholder|redacted|dummy|sample|insert|replace|process\."
    r"|os\.|env|config|settings|self\.|args|none|null|true|false|undefined|string|str$|text$|password$|passwd$|pass$"
    r"|secret$|token$|key$|required|optional|hidden|masked|empty",
    re.I,
)
HEX_OR_UUID = re.compile(r"[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def find_secrets(text: str) -> list[Span]:
    """The secrets in `text`; they may overlap."""
    found = [span for run in RUN.finditer(text) for span in _in_run(run[0], run.start(), text)]
    if "://" in text:
        spans = _anchored("://", URL_PASSWORD, "password", text, text)
        found += [span for span in spans if not is_placeholder(text[span.start : span.end])]
        found += _anchored("hooks.slack.com", WEBHOOK, "api_key", text, text)
    if "PRIVATE KEY" in text:
        found += _anchored("-----BEGIN ", PEM, "private_key", text, text)
    lower = text.lower()
    if len(lower) != len(text):  # a few rare letters change their length
        lower = text.translate(ASCII_LOWER)
    if "bearer" in lower:
        spans = _anchored("bearer", BEARER, "token", text, lower)
        found += [span for span in spans if is_dense(text[span.start : span.end])]
    for stem in STEMS:
        if stem in lower:
            found += _assigned(stem, text, lower)
    return found


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret, whatever it looks like."""
    plain = name.lower().replace("_", "").replace("-", "").replace(".", "")[-MAX_NAME_CHARS:]
    return STRONG.search(plain) is not None and HARMLESS.search(plain) is None


def is_placeholder(value: str) -> bool:
    """Whether a value stands for a secret instead of being one."""
    return PLACEHOLDER.match(value) is not None


def is_dense(value: str) -> bool:
    """Letters and digits both occur, as they do in keys and seldom in words."""
    return any(char.isdigit() for char in value) and any(char.isalpha() for char in value)


def looks_random(value: str) -> bool:
    """Long, mixed, of high entropy, and neither a hash nor a UUID: those name things, they open nothing."""
    if len(value) < LEAST_RANDOM_CHARS or not is_dense(value) or HEX_OR_UUID.fullmatch(value):
        return False
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) >= LEAST_ENTROPY


def _in_run(run: str, start: int, text: str) -> Iterator[Span]:
    """The key that a run begins with. In JSON inside a string its first letter may be the `n` of `\\n`."""
    skip = 1 if start and text[start - 1] == "\\" and run[0] in "nrt" else 0
    if not run.startswith(PREFIXES, skip):
        return
    for rule in RULES:
        match = rule.pattern.match(run, skip) if run.startswith(rule.prefix, skip) else None
        if match and (not rule.dense or is_dense(match[0])):
            yield Span(start + match.start(), start + match.end(), rule.kind)
            return


def _anchored(needle: str, pattern: re.Pattern[str], kind: str, text: str, haystack: str) -> Iterator[Span]:
    """Matches in `text` of a pattern that begins with `needle`, which is looked for in `haystack`."""
    done = 0
    while (at := haystack.find(needle, done)) >= 0:
        match = pattern.match(text, at)
        done = match.end() if match else at + len(needle)
        if match:
            yield Span(*match.span("s" if "s" in pattern.groupindex else 0), kind)


def _assigned(stem: str, text: str, lower: str) -> Iterator[Span]:
    """Values assigned to names that contain `stem` and are names of secrets."""
    kind = "password" if stem in ("passw", "pwd", "passphrase") else "secret"
    done = 0
    while (at := lower.find(stem, done)) >= 0:
        done = at + len(stem)
        match = ASSIGNED.match(text, done)
        if match is None:
            continue
        start = at
        while start > max(0, at - MAX_NAME_CHARS) and lower[start - 1] in NAME_CHARS:
            start -= 1
        name = lower[start:done] + match["rest"].lower()
        if _is_assigned_secret(name, match, text):
            yield Span(*match.span("quoted" if match["open"] else "bare"), kind)


def _is_assigned_secret(name: str, match: re.Match[str], text: str) -> bool:
    quoted = bool(match["open"])
    value = match["quoted"] if quoted else match["bare"]
    if is_placeholder(value) or (not quoted and text[match.end() : match.end() + 1] in ("(", "[")):  # code
        return False
    if is_secret_name(name):
        if quoted and " " not in value.strip():
            return len(value) >= (1 if match["close"] else 4)
        return (len(value) >= 6 and is_dense(value) and " " not in value) or "passphrase" in name
    plain = name.replace("_", "").replace("-", "")
    return bool(WEAK.search(plain)) and not HARMLESS.search(plain) and looks_random(value)
