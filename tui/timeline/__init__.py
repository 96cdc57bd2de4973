"""Parts of the timeline screen."""
