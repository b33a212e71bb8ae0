"""Programs that work on this repository: `.venv/bin/python -m tools.NAME` in its root. Those without a suffix are the
shell's."""
