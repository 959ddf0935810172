"""What a run serves: when requests arrive, how long they are, and which model they are for."""
