"""Effects on a device: the world in which the same policies move real pages and real bytes on a GPU."""
