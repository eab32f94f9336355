"""Finding personal data in text, kind by kind. What carries a checksum is checked."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator

from nightschool.access.secrets import Span

EMAIL_DOMAIN = re.compile(r"@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){0,8}\.[A-Za-z]{2,24}(?![A-Za-z0-9\-])")
LOCAL_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%+-")
MAX_LOCAL_CHARS = 64

INTERNATIONAL = re.compile(r"\+\d[\d .\-()/]{6,22}\d(?![\dA-Za-z])")
NATIONAL = re.compile(
    r"\d{3}([ .\-])\d{3}\1\d{4}(?![\w\-])"  # North America
    r"|\(\d{3}\) ?\d{3}[ .\-]\d{4}(?![\w\-])"
    r"|\(?0\d{1,4}\)?[ /\-]\d{3,8}(?:[ \-]\d{2,6}){0,3}(?![\w\-])"  # a leading zero, as in most of Europe
)
CARD = re.compile(r"[2-6](?:[ \-]?\d){12,18}(?![\w\-])")
IBAN = re.compile(r"([A-Z]{2})\d{2}(?: ?[A-Z0-9]){11,30}")
IBAN_CHARS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "CH": 21,
    "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18,
    "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23,
    "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27,
    "MD": 24, "ME": 22, "MK": 19, "MT": 31, "NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29,
    "RO": 24, "RS": 22, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TN": 24, "TR": 26, "UA": 29, "XK": 20,
}  # fmt: skip
IPV4 = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w]|\.\d)")
IPV6 = re.compile(r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")


def emails(text: str) -> Iterator[Span]:
    at = -1
    while (at := text.find("@", at + 1)) >= 0:
        match = EMAIL_DOMAIN.match(text, at)
        if match is None:
            continue
        start = at
        while start > max(0, at - MAX_LOCAL_CHARS) and text[start - 1] in LOCAL_CHARS:
            start -= 1
        if start < at:
            yield Span(start, match.end(), "email")


def phones(text: str) -> Iterator[Span]:
    if "+" in text:
        for match in INTERNATIONAL.finditer(text):
            if 8 <= sum(char.isdigit() for char in match[0]) <= 15:
                yield Span(*match.span(), "phone")
    for match in _apart(NATIONAL, text):
        if 8 <= sum(char.isdigit() for char in match[0]) <= 14:
            yield Span(*match.span(), "phone")


def cards(text: str) -> Iterator[Span]:
    for match in _apart(CARD, text):
        if passes_luhn([int(char) for char in match[0] if char.isdigit()]):
            yield Span(*match.span(), "card")


def ibans(text: str) -> Iterator[Span]:
    for match in _apart(IBAN, text):
        size, end, taken = IBAN_CHARS.get(match[1], 0), match.start(), 0
        while taken < size and end < match.end():
            taken += text[end] != " "
            end += 1
        if size and taken == size and passes_mod97(text[match.start() : end].replace(" ", "")):
            yield Span(match.start(), end, "iban")


def addresses(text: str) -> Iterator[Span]:
    if text.count(".") < 3 and text.count(":") < 2:
        return
    patterns = (IPV4, IPV6) if "::" in text or text.count(":") > 6 else (IPV4,)
    for match in (match for pattern in patterns for match in _apart(pattern, text)):
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            continue
        if any(map(str.isdigit, match[0])) and not (address.is_loopback or address.is_unspecified):
            yield Span(*match.span(), "ip")


def _apart(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Matches that continue no word or number. A look-behind in the pattern would make its search ten times slower."""
    for match in pattern.finditer(text):
        before = text[match.start() - 1] if match.start() else " "
        if not (before.isalnum() or before in "_.-+/:"):
            yield match


KINDS: dict[str, Callable[[str], Iterable[Span]]] = {
    "email": emails,
    "phone": phones,
    "card": cards,
    "iban": ibans,
    "ip": addresses,
}


def passes_luhn(digits: list[int]) -> bool:
    """The check digit of payment cards; a row of one digit repeated does not count."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = digit * 2 if place % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0 and len(set(digits)) > 1


def passes_mod97(iban: str) -> bool:
    """The check digits of an IBAN: letters as two digits, the first four characters last, 1 modulo 97."""
    return int("".join(str(int(char, 36)) for char in iban[4:] + iban[:4])) % 97 == 1
