"""Importing this before numpy keeps numpy's linear algebra on the calling thread.

The products here are small, and a BLAS that divides them among all processors makes its threads spin while they wait
for their parts: eight times the processor time on a busy host, some of it on the processors of the machine that is
measured. The library reads the variable when it is loaded. It is removed right after that, so that no measured command
inherits it. A value set by the user is kept.
"""

import os
import sys

_VARIABLE = "OPENBLAS_NUM_THREADS"

if "numpy" not in sys.modules and _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[_VARIABLE]
