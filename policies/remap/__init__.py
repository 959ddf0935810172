"""MIRAGE's four questions, a file of pure functions each: when, which model, how many, which layers."""
