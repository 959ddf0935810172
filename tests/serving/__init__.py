"""The schedulers and their block pools."""
