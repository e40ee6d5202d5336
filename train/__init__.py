"""Everything between measured rows and shipped weights; outside the wheel, rerunnable from a data folder."""
