"""Implicit signals: weak labels that nobody gave on purpose, read off sessions by rule, weighed by what they turned out
to mean for each agent."""
