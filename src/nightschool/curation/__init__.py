"""Curation: from recorded sessions and feedback to an immutable dataset with a reason for every exchange."""
