"""Layers that carry a state from token to token: delta nets, Mamba 2, and the short convolution before them."""
