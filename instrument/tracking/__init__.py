"""Which thread trains, and in which phase of which step it is."""
