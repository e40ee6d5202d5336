"""Predictions in the forms that other simulators and viewers read."""
