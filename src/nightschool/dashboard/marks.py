"""Untrusted text made safe to look at: it stays text, and what steers a reader is shown as a mark.

Control characters, characters that change the direction of what follows and characters without a shape
are replaced by a visible name, so that a trace can neither hide text nor reorder the page around it.
"""

from __future__ import annotations

import re
import unicodedata

from markupsafe import Markup, escape

# C0 without tab and newline, DEL, C1, direction marks, embeddings, isolates, zero-width characters without
# the joiners that scripts need, invisible operators, the byte order mark, lone surrogates, tag characters.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028\u2029"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
C0 = (
    "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
)
SHORT = dict(enumerate(C0.split())) | {
    0x7F: "DEL", 0x200B: "ZWSP", 0x200E: "LRM", 0x200F: "RLM", 0x061C: "ALM", 0x202A: "LRE", 0x202B: "RLE",
    0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
    0xFEFF: "BOM", 0x00AD: "SHY", 0x2028: "LS", 0x2029: "PS",
}  # fmt: skip


def mark_of(character: str) -> str:
    """The visible stand-in: `ESC`, `RLO` for an override, else the code point."""
    return SHORT.get(ord(character), f"U+{ord(character):04X}")


def visible(text: object) -> Markup:
    """HTML of a text: escaped, every hidden character as a marked name."""
    parts: list[str] = []
    end = 0
    source = str(text)
    for match in HIDDEN.finditer(source):
        parts += [escape(source[end : match.start()]), _mark(match.group())]
        end = match.end()
    parts.append(escape(source[end:]))
    return Markup("").join(parts)


def plain(text: object) -> str:
    """The same without HTML, for attributes, titles and JSON: marks in brackets."""
    return HIDDEN.sub(lambda match: f"[{mark_of(match.group())}]", str(text))


def one_line(text: object, limit: int = 160) -> str:
    """A preview: white space folded, cut at `limit` characters with an ellipsis."""
    source = str(text)
    folded = " ".join(source[: 4 * limit].split())
    if len(folded) > limit or len(source) > 4 * limit:
        return folded[:limit].rstrip() + "…"
    return folded


def _mark(character: str) -> Markup:
    name = unicodedata.name(character, "control character").lower()
    return Markup('<span class="mark" title="U+{:04X} {}">{}</span>').format(ord(character), name, mark_of(character))
