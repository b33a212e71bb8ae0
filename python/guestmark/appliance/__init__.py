"""Provides what a guest boots: a kernel, its modules and an initramfs that contains little more than the agent."""
