"""Contents in parts, as chat messages and as ATIF write them."""

from __future__ import annotations

import json
import mimetypes
from typing import Any

from nightschool.types import Json

IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def chat_content(content: Any) -> Any:
    """A content of ATIF as chat messages have it: an image is a URL, wherever it lies."""
    return [_chat_part(part) for part in content] if isinstance(content, list) else content


def atif_content(content: Any) -> Any:
    """A content as ATIF has it: a text, or parts of text and images; of other parts only the kind is told."""
    if isinstance(content, list):
        return [_atif_part(part) for part in content]
    return content if content is None or isinstance(content, str) else json.dumps(content)


def _chat_part(part: Any) -> Any:
    source = part.get("source") if isinstance(part, dict) and part.get("type") == "image" else None
    if not isinstance(source, dict) or not isinstance(source.get("path"), str):
        return part
    return {"type": "image_url", "image_url": {"url": source["path"]}}


def _atif_part(part: Any) -> Json:
    told: Json = part if isinstance(part, dict) else {}
    if told.get("type") == "text" and isinstance(told.get("text"), str):
        return {"type": "text", "text": told["text"]}
    image = told.get("image_url")
    url = image.get("url") if isinstance(image, dict) else None
    kind = mimetypes.guess_type(url)[0] if isinstance(url, str) else None
    if kind in IMAGES:
        return {"type": "image", "source": {"media_type": kind, "path": url}}
    return {"type": "text", "text": f"[{told.get('type') or 'part'}]"}
