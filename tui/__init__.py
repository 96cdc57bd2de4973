"""The terminal interface. The only place where Textual may be imported."""
