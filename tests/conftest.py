"""Programs started by tests hear signals as at a terminal, also under nohup and in the background of a script.

There the signals are ignored, which every child would inherit; a handler that does nothing ends with exec.
"""

import signal

for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
