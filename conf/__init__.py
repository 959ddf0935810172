"""Configuration: YAML chooses, ``schema`` types, ``build`` turns it into frozen values; the only package with Hydra."""
