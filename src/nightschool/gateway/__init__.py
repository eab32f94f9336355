"""The recording proxy: it forwards bytes, and parses a copy."""
