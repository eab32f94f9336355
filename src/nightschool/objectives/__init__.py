"""Objectives: what each needs, and pure annotations of samples. The trainer does not know which one runs."""
