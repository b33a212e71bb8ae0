"""The factors of machines: each is one object that defines its levels, the machines that take them, and their effect.

Each family has a module. No list names them: `core.discovery.list_settings` finds the objects.
"""
