"""Times the phases of training steps, inside the job, at next to no cost."""
