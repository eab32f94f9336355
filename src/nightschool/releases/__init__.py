"""Adapters that never change, and the one pointer that says which of them serves."""
