"""Models as Hugging Face describes them: a ``config.json`` made into sizes."""
