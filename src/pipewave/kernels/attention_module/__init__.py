"""Attention layers with their projections: latent (MLA), sparse (DSA, MSA) and compressed (CSA, HCA)."""
