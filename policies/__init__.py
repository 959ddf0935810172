"""Decisions: a frozen view in, a frozen target out; standard library only, no clock, no randomness, no effects."""
