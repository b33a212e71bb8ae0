"""Renderers: each draws every node of a page in one format."""
