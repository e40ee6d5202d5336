"""Laws of the hardware, each once: pipes and their floor, waves, launch, cache, overlap, energy."""
