"""What machines of other architectures are made from: agents, kernels and roots, made on first use and kept."""
