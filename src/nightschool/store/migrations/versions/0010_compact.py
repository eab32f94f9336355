"""Hashes as bytes, content compressed, and each conversation together in every index.

Message hashes get a stem that a conversation's messages share, so all of them are computed again, from the
roots down; what refers to them follows. Short contents move from the blobs into their messages; the blobs stay,
since bodies refer to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from alembic import op

from nightschool.store.columns import Digest, Packed

revision = "0010"
down_revision = "0070"

PART = 500
INLINE_BYTES = 1024
STEM_CHARS, HASH_CHARS, SYSTEM_CHARS = 8, 40, 16
NO_STEM = "0" * STEM_CHARS
SHARED_ROLES = ("system", "developer")
EXCHANGE_HASHES = {
    "request_body": False,
    "reply_body": True,
    "tools_blob": True,
    "prompt_message": True,
    "reply_match_hash": True,
    "context_hash": True,
}  # nullable or not

renames = sa.table("renames", *map(sa.column, ("tenant", "old_hash", "hash", "dialogue_hash", "system_hash")))
old_messages = sa.table("messages", *map(sa.column, ("tenant", "hash", "parent_hash", "depth", "role", "blob_hash")))
old_blobs = sa.table("blobs", *map(sa.column, ("tenant", "hash", "data")))
old_bodies = sa.table("bodies", *map(sa.column, ("tenant", "hash", "size_bytes", "segments")))
exchanges = sa.table(
    "exchanges", *map(sa.column, ("tenant", "id", "prompt_message", "reply_match_hash", "system_hash"))
)
choices = sa.table("choices", *map(sa.column, ("tenant", "exchange_id", "index", "message_hash")))
items = sa.table("import_items", *map(sa.column, ("tenant", "leaf")))


def upgrade() -> None:
    op.create_table(
        "renames",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("old_hash", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("dialogue_hash", sa.String()),
        sa.Column("system_hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "old_hash"),
    )
    convert_messages()
    rename_references()
    op.drop_table("renames")
    convert_blobs()
    convert_bodies()
    create_spellings()
    convert_columns()
    narrow_indexes()


def convert_messages() -> None:
    new = op.create_table(
        "new_messages",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", Digest(), nullable=False),
        sa.Column("parent_hash", Digest()),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("match_hash", Digest(), nullable=False),
        sa.Column("content", Packed()),
        sa.Column("blob_hash", Digest()),
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    conn = op.get_bind()
    m, b = old_messages.c, old_blobs.c
    joined = old_messages.join(old_blobs, sa.and_(b.tenant == m.tenant, b.hash == m.blob_hash))
    above: Level = {}
    for depth in range((conn.scalar(sa.select(sa.func.max(m.depth))) or 0) + 1):
        query = sa.select(*old_messages.c, b.data).select_from(joined).where(m.depth == depth)
        here: Level = {}
        for rows in parts(conn, query):
            made, named = [], []
            for row in rows:
                message, place = converted(row, above.get((row.tenant, row.parent_hash)))
                here[row.tenant, row.hash] = place
                made.append(message)
                named.append({"tenant": row.tenant, "old_hash": row.hash, "hash": place.hash} | place.names())
            conn.execute(sa.insert(new), made)
            conn.execute(sa.insert(renames), named)
        above = here
    op.drop_index("messages_parent", "messages")
    op.drop_table("messages")
    op.rename_table("new_messages", "messages")


class Place(NamedTuple):
    """What the messages below one go on from. `dialogue` leaves the leading system messages out, whose match
    keys are `leading`."""

    hash: str
    match: str
    dialogue: str | None
    leading: tuple[bytes, ...]

    def names(self) -> dict[str, str | None]:
        return {
            "dialogue_hash": self.dialogue,
            "system_hash": hashlib.sha256(b"\0".join(self.leading)).hexdigest()[:SYSTEM_CHARS],
        }


Level = dict[tuple[str, str], Place]


def converted(row: Any, parent: Place | None) -> tuple[dict[str, Any], Place]:
    """The new row of a message, from the place of the one above it."""
    data = bytes(row.data)
    message = json.loads(data)
    role, key = message.get("role"), match_key(message)
    above = parent.hash if parent else None
    content = sorted_json(message)
    whole = b"\0".join([row.tenant.encode(), (above or "root").encode(), content])
    leads = role in SHARED_ROLES and (parent is None or parent.dialogue is None)
    leading = parent.leading if parent else ()
    place = Place(
        hash=chained(above, whole, role),
        match=rolled(parent.match if parent else None, key),
        dialogue=None if leads else rolled(parent.dialogue if parent else None, key),
        leading=(*leading, key) if leads else leading,
    )
    inline = len(data) <= INLINE_BYTES
    made = {
        "tenant": row.tenant,
        "hash": place.hash,
        "parent_hash": above,
        "depth": row.depth,
        "role": row.role,
        "match_hash": place.match,
        "content": data if inline else None,
        "blob_hash": None if inline else row.blob_hash,
    }
    return made, place


def chained(previous: str | None, data: bytes, role: object) -> str:
    digest = hashlib.sha256(data).hexdigest()
    stem = NO_STEM if previous is None else previous[:STEM_CHARS]
    if stem == NO_STEM and role not in SHARED_ROLES:
        stem = digest[:STEM_CHARS]
    return stem + digest[STEM_CHARS:HASH_CHARS]


def rolled(previous: str | None, key: bytes) -> str:
    digest = hashlib.sha256((previous or "").encode() + key).hexdigest()
    return (digest if previous is None else previous)[:STEM_CHARS] + digest[STEM_CHARS:HASH_CHARS]


def match_key(message: dict[str, Any]) -> bytes:
    made = message.get("tool_calls")
    calls = [
        (call["function"].get("name"), value_of(call["function"].get("arguments")))
        for call in (made if isinstance(made, list) else ())
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    ]
    return sorted_json([message.get("role"), content_text(message.get("content")), calls])


def value_of(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def sorted_json(value: object) -> bytes:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        data = b"null"
    if b"null" not in data:
        return data
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def content_text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return json.dumps(content, ensure_ascii=False)


def rename_references() -> None:
    """What refers to messages names them by their new hashes, still as text."""
    conn = op.get_bind()
    x, c, r = exchanges.c, choices.c, renames.c
    answered = renames.join(choices, sa.and_(c.tenant == r.tenant, c.message_hash == r.old_hash))
    for name, column in (("reply_match_hash", r.dialogue_hash), ("system_hash", r.system_hash)):
        reply = sa.select(column).select_from(answered)
        reply = reply.where(c.tenant == x.tenant, c.exchange_id == x.id, c.index == 0).limit(1).scalar_subquery()
        given = x.reply_match_hash.is_not(None)
        conn.execute(sa.update(exchanges).where(given).values({name: sa.func.coalesce(reply, "")}))
    gone = sa.update(exchanges).where(x.reply_match_hash == "")
    conn.execute(gone.values(reply_match_hash=None))
    asked = sa.select(r.hash).where(r.tenant == x.tenant, r.old_hash == x.prompt_message).scalar_subquery()
    conn.execute(sa.update(exchanges).where(x.prompt_message.is_not(None)).values(prompt_message=asked))
    leaf = sa.select(r.hash).where(r.tenant == items.c.tenant, r.old_hash == items.c.leaf).scalar_subquery()
    conn.execute(sa.update(items).where(items.c.leaf.is_not(None)).values(leaf=leaf))
    said = sa.select(r.hash).where(r.tenant == c.tenant, r.old_hash == c.message_hash).scalar_subquery()
    conn.execute(sa.update(choices).where(c.message_hash.is_not(None)).values(message_hash=said))


def convert_blobs() -> None:
    new = op.create_table(
        "new_blobs",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", Digest(), nullable=False),
        sa.Column("data", Packed(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    conn = op.get_bind()
    for rows in parts(conn, sa.select(*old_blobs.c)):
        conn.execute(sa.insert(new), [{**row._mapping, "data": bytes(row.data)} for row in rows])
    op.drop_table("blobs")
    op.rename_table("new_blobs", "blobs")


def convert_bodies() -> None:
    new = op.create_table(
        "new_bodies",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", Digest(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("segments", sa.LargeBinary(), nullable=False),  # packed already
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    conn = op.get_bind()
    for rows in parts(conn, sa.select(*old_bodies.c)):
        conn.execute(sa.insert(new), [dict(row._mapping) for row in rows])
    op.drop_table("bodies")
    op.rename_table("new_bodies", "bodies")


def create_spellings() -> None:
    op.create_table(
        "spellings",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("message_hash", Digest(), nullable=False),
        sa.Column("variant", sa.Integer(), nullable=False),
        sa.Column("data", Packed(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "message_hash", "variant"),
    )


def convert_columns() -> None:
    """Hex text becomes bytes."""
    to_bytes("exchanges", EXCHANGE_HASHES)
    to_bytes("choices", {"message_hash": True})


def to_bytes(name: str, columns: dict[str, bool]) -> None:
    conn = op.get_bind()
    if conn.dialect.name == "sqlite":
        raw: Any = conn.connection.dbapi_connection
        raw.create_function("from_hex", 1, lambda text: None if text is None else bytes.fromhex(text))
        table = sa.table(name, *map(sa.column, columns))
        conn.execute(sa.update(table).values({c: sa.func.from_hex(table.c[c]) for c in columns}))
    with op.batch_alter_table(name) as batch:
        for column, nullable in columns.items():
            batch.alter_column(
                column,
                type_=Digest(),
                existing_type=sa.String(),
                existing_nullable=nullable,
                postgresql_using=f"decode({column}, 'hex')",
            )


def narrow_indexes() -> None:
    """Nearly no exchange has an external key, and those without one need no entry."""
    for column, index in (("upstream_id", "exchanges_upstream"), ("external_key", "exchanges_external")):
        op.drop_index(index, "exchanges")
        present = sa.text(f"{column} IS NOT NULL")
        op.create_index(index, "exchanges", ["tenant", column], sqlite_where=present, postgresql_where=present)


def parts(conn: sa.Connection, query: sa.Select[Any]) -> Iterator[list[Any]]:
    """The rows of a query, some at a time."""
    return (list(part) for part in conn.execute(query).partitions(PART))
