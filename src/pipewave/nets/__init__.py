"""What is learned over the physical estimate: nets, their cards and their intervals."""
