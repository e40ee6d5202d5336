"""Configuration files that serving engines look up for a model on a GPU: names, contents, and what they gain."""
