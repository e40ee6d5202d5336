"""Laboratory: harnesses that time engines, counters and whole servers on a GPU, and packers of what they measured."""
