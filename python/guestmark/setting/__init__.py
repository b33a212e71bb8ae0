"""The factors of machines: each is one object that says what its levels are, who takes them and what they do.

Each family has a module. No list names them: `core.discovery.list_settings` finds the objects.
"""
