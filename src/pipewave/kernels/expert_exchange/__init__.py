"""Experts on many ranks: tokens sent to them and back, alone or in one kernel with the experts."""
