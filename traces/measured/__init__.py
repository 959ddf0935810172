"""What real devices and servers did: latencies of operations and layers, logs of requests."""
