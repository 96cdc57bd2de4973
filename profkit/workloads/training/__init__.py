"""The training loop that all reference systems share."""
