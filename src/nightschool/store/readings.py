"""The table of what readers made of feedback, beside those of `schema.py`."""

from sqlalchemy import Column, Float, Index, Integer, PrimaryKeyConstraint, String, Table, Text
from sqlalchemy.types import JSON

from nightschool.store.columns import metadata

# Append-only: what each reader, and each version of one, made of a text or a correction. `score` is in log-odds before
# any calibration, null where nothing could be read; `votes` are a judge's, as they came; `made` says how it was asked.
readings = Table(
    "readings",
    metadata,
    Column("tenant", String, nullable=False),
    Column("feedback_id", String, nullable=False),
    Column("reader", String, nullable=False),
    Column("polarity", String, nullable=False),
    Column("score", Float),
    Column("wish", Text),
    Column("hint", Text),
    Column("exchange_id", String),  # the reply that it is about
    Column("turn", Integer),
    Column("notes", JSON, nullable=False),
    Column("votes", JSON, nullable=False),
    Column("made", JSON, nullable=False),
    Column("read_at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "feedback_id", "reader"),
    Index("readings_reader", "tenant", "reader", "read_at"),
)
