"""Effects as time: the simulated world, on a SimPy clock of integer nanoseconds."""
