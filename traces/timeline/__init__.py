"""A run as a timeline that ui.perfetto.dev and chrome://tracing open: ``python -m traces timeline``."""
