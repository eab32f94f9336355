"""Nightschool: the model behind an agent learns from its own live work."""

__version__ = "0.1.0"
