"""Programs that work on this repository: `.venv/bin/python -m tools.NAME` in its root.

Files without a suffix are shell scripts.
"""
