"""What a Triton kernel's source says of a launch: loop trips, bytes and FLOPs of a block, and what it does not say."""
