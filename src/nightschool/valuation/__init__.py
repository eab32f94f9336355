"""Valuation: how likely the agent succeeds, estimated from words and feedback alone, with its uncertainty."""
