"""What people's training scripts print, one grammar a file; `_assemble` makes runs of what a grammar reads."""
