"""Conversations: turns of a trace or made ones, served in a closed loop, and their figures."""
