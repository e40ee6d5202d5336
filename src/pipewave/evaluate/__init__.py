"""Held-out accuracy of the shipped weights, on our own rows and on the public corpus."""
