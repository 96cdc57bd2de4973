"""One line in a trainer's own idiom that records its job: one module for each trainer."""
