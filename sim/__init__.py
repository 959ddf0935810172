"""Effects as time: the simulated world, in integer nanoseconds."""
