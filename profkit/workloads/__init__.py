"""The reference systems, one file each. Files that begin with an underscore are parts of them."""
