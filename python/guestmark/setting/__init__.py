"""The factors of machines: each is one object that says what its levels are, who takes them and what they do.

A family has a module. Nothing lists their names: whoever uses factors asks the objects (`core.discovery.settings`).
"""
