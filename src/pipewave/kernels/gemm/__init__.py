"""Dense matrix products."""
