"""Reports on runs: learning curves, comparisons, tables, populations, fronts and pictures of policies."""
