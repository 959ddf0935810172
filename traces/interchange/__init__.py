"""Results of other programs read, and ours written as other programs read them."""
