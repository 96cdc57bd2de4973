"""Answer questions of coding agents about runs, over the Model Context Protocol."""
