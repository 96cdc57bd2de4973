"""What a result is made of, and how it is shown: as text, JSON, Markdown and HTML."""
