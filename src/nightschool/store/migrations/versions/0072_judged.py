"""Feedback of a session by state and kind: who asks for judged sessions names both."""

from alembic import op

revision = "0072"
down_revision = "0021"


def upgrade() -> None:
    op.drop_index("feedback_session", "feedback")
    op.create_index("feedback_session", "feedback", ["tenant", "session_id", "state", "kind", "exchange_id"])
