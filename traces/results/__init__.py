"""What a run leaves: its folder of tables, written while it runs and read afterwards, and the figures from them."""
