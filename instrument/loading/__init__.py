"""Time what the data loader does in the job and in its workers."""
