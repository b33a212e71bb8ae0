"""Makes what a guest boots: a kernel, its modules and an initramfs that holds little more than the agent."""
