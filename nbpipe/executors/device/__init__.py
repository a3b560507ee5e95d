"""Device: batches copied to a device, and worked on there."""
