"""Corrections from a card's own rows, as predictions read them; `calibrate` fits and writes them."""
