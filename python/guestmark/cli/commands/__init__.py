"""Declarations of the commands' options and arguments, one module for each verb."""
