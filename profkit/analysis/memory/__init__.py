"""The memory of a device at its peak, from a snapshot of its allocator."""
