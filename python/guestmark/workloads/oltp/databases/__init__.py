"""Database servers under test: how each is installed, started, asked and stopped, and loaded data directories."""
