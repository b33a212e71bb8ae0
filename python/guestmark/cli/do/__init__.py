"""What each command does: one module for each verb, imported when that verb runs."""
