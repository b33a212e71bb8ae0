"""`${NAME}` in a job file: a value of the plan's, or the factor `threads`."""

import re

THREADS_VARIABLE = "THREADS"  # what the factor `threads` is called in a job file
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def variables_of(job: str) -> list[str]:
    """The names of all variables in the text of a job file, in order."""
    return _VARIABLE.findall(job)
