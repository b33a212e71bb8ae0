"""Machines without disk or agent that boot iPXE from the network, and what their packets say."""
