"""What each command is called with: one module for each verb, which only declares."""
