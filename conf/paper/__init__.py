"""The papers' claims beside ours: which experiment tells which number, how far off it is, one page of all of them."""
