"""Platforms: each package describes its kinds in `PLATFORMS`; `base` is the contract, the other modules are shared."""
