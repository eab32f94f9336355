"""Texts read: how somebody felt, what they wished instead, which reply they meant, what a teacher may see of it."""
