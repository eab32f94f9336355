"""What a message holds besides text: images, files, sounds, reasoning, told by kind, type and size, never drawn."""

from __future__ import annotations

import re

from nightschool.types import Json

DATA_URI = re.compile(r"data:([^;,]{0,100})((?:;[^,;]{0,100})*),", re.IGNORECASE)
TEXT_PARTS = ("text", "input_text", "output_text")
REASONING = ("reasoning_content", "reasoning")


def other_parts(message: Json) -> list[Json]:
    """Parts that are no text, in order: {kind, media, size_bytes, where}; what is not known is `None`.

    `where` is an address or a reference as the message has it; the bytes of a data URI are only counted.
    """
    content = message.get("content")
    found = [_part(part) for part in (content if isinstance(content, list) else ()) if isinstance(part, dict)]
    parts = [part for part in found if part is not None]
    for name in REASONING:
        if isinstance(message.get(name), str) and message[name]:
            parts.append(_told("reasoning", text=message[name]))
            break
    blocks = message.get("thinking_blocks")
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict):
            signed = "signed" if block.get("signature") else None
            parts.append(_told("thinking block", text=_text(block.get("thinking")), where=signed))
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        parts.append(_told("refusal", text=message["refusal"]))
    return parts


def _part(part: Json) -> Json | None:
    kind = str(part.get("type"))
    if kind in TEXT_PARTS:
        return None
    held = part.get(kind)
    body: Json = held if isinstance(held, dict) else part
    if kind == "refusal":
        return _told("refusal", text=_text(part.get("refusal")))
    source = body.get("source")
    inner: Json = source if isinstance(source, dict) else body
    address = next((inner[name] for name in ("url", "file_data", "data", "image_url") if _text(inner.get(name))), "")
    media = _text(inner.get("media_type")) or _text(inner.get("format"))
    name = kind.removesuffix("_url").removeprefix("input_").replace("_", " ")
    match = DATA_URI.match(address)
    if match is not None:
        size = _size(len(address) - match.end(), "base64" in match[2].lower())
        return _told(name, media=match[1] or media, size_bytes=size)
    if inner.get("data") == address and address:
        return _told(name, media=media, size_bytes=_size(len(address), True))
    known = next((_text(inner[key]) for key in ("file_id", "blob", "filename", "name") if _text(inner.get(key))), "")
    return _told(name, media=media, where=address or known or None)


def _told(
    kind: str, text: str = "", media: str | None = None, size_bytes: int | None = None, where: str | None = None
) -> Json:
    return {"kind": kind, "text": text, "media": media or None, "size_bytes": size_bytes, "where": where}


def _size(characters: int, base64: bool) -> int:
    return characters * 3 // 4 if base64 else characters


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
