"""Texts as they are read: without hidden characters, cut to what is read of a long one, in sentences."""

from __future__ import annotations

import re
import unicodedata

HEAD_CHARS, TAIL_CHARS = 4000, 2000  # read of a text that is longer than both
MAX_SENTENCE_CHARS = 400
MAX_SENTENCES = 60
ENDS = re.compile(r"(?<=[.!?…])\s+|\s*[\n\r;]+\s*")
SPACES, LINES = re.compile(r"[^\S\n]+"), re.compile(r" ?\n[ \n]*")
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")

# Frequent words that no other of these languages has.
FREQUENT = {
    "en": "the and is was you it not that this have for with are but what they i my did to of me your be",
    "de": "der die das und ist nicht ich sie ein eine mit auf den wir haben habe aber war wie mein meine nach zu",
    "fr": "le les des et est pas je vous une que qui dans pour avec mais mon ma pourquoi cette c'est j'ai sur du",
    "es": "el los las y es un una que no por para con pero mi está estaba qué cómo muy me lo fue su del",
}
# The letters of each beyond those of English.
ALPHABETS = {"en": "", "de": "äöüß", "fr": "àâæçéèêëîïôœùûüÿ", "es": "áéíóúüñ"}
FOREIGN = 0.05  # of a text's letters may be of no alphabet of its language: names are
SPOKEN = {language: frozenset(words.split()) for language, words in FREQUENT.items()}
SHORT_WORDS = 3  # texts of so few words are taken for English where they are in Latin letters


def plain(text: str) -> str:
    """`text` in its compatible form, without characters that hide or steer; spaces of all kinds are one kind."""
    composed = unicodedata.normalize("NFKC", text)
    shown = composed if composed.isprintable() else "".join(map(_shown, composed))
    return LINES.sub("\n", SPACES.sub(" ", shown)).strip()


def read_part(text: str) -> tuple[str, bool]:
    """The beginning and the end of a long text, and whether it was cut."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text, False
    return f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}", True


def sentences(text: str) -> list[str]:
    parts = (part.strip() for part in ENDS.split(text))
    return [part[:MAX_SENTENCE_CHARS] for part in parts if part][:MAX_SENTENCES]


def words(text: str) -> list[str]:
    return [word.replace("’", "'") for word in WORD.findall(text.casefold())]


def folded(text: str) -> str:
    """Lower case, without accents."""
    bare = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in bare if not unicodedata.combining(char))


def language_of(text: str) -> str | None:
    """`en`, `de`, `fr` or `es`, by its frequent words; `None` for every other language, and where it cannot be told."""
    letters = [char for char in text if char.isalpha()]
    latin = sum("LATIN" in unicodedata.name(char, "") for char in letters[:500])
    if not letters:
        return "en"
    if latin < 0.8 * len(letters[:500]):
        return None
    found = words(text)[:400]
    counts = {language: sum(word in spoken for word in found) for language, spoken in SPOKEN.items()}
    best = max(counts, key=lambda language: counts[language])
    if counts[best] and counts[best] >= 0.08 * len(found):
        spoken = best if sorted(counts.values())[-2] < counts[best] or counts["en"] < counts[best] else "en"
        foreign = sum(not char.isascii() and char.casefold() not in ALPHABETS[spoken] for char in letters)
        return spoken if foreign <= FOREIGN * len(letters) else None
    return "en" if len(found) <= SHORT_WORDS and all(char.isascii() for char in letters) else None


def _shown(char: str) -> str:
    if char in "\n\r":
        return "\n"
    kind = unicodedata.category(char)
    if kind in ("Zs", "Zl", "Zp", "Cc"):
        return "\n" if kind in ("Zl", "Zp") else " "
    return "" if kind[0] == "C" else char
