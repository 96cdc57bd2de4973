"""Find out why a job stands still: who waits for whom, from files alone."""
