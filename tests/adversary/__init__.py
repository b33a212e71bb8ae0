"""Attacks on what keeps guests from their host, and what came of them: `python -m tests.adversary`."""
