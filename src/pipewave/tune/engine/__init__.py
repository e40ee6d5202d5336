"""Configuration files that serving engines look up for a model on a card: names, contents, and what they gain."""
