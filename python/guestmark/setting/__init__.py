"""The factors of machines: each is one object that defines its levels, the machines that accept them, and their effect.

Each family has a module. There is no list of them: `core.discovery.list_settings` finds the objects.
"""
