"""The command line. Start-up time is paid by every call, so heavy things are imported where they are used."""

import os
import sys

_SET_UP = "GUESTMARK_SET_UP_S"  # from `guestmark`, the launcher: how long set-up took


def main() -> int:
    """Runs the command line of this process and returns its exit status; never a traceback for what is expected."""
    try:
        _open_closed_streams()
        if set_up_s := os.environ.pop(_SET_UP, ""):  # by the launcher, in this very process
            from guestmark.engine import clock

            clock.exclude_set_up(float(set_up_s))
        if (answered := _without_parser(sys.argv[1:])) is not None:
            return answered
        from guestmark.cli.app import app

        status = app(prog_name="guestmark", standalone_mode=False)
    except KeyboardInterrupt:  # perhaps in the middle of an import, so nothing more is imported
        return 130
    except BaseException as error:
        from guestmark.cli import faults

        return faults.status_after(error)
    return status if isinstance(status, int) else 0


def _without_parser(words: list[str]) -> int | None:
    """Answers lines for which no parser has to be imported, the slowest part. None for all others."""
    try:
        answer = {"capture": _capture, "show": _show}.get(words[0]) if words else None
        status = _told(words) if answer is None else answer(words[1:])
        sys.stdout.flush()
    except BrokenPipeError as error:
        from guestmark.cli.faults import PipeClosed

        raise PipeClosed from error
    return status


def _capture(words: list[str]) -> int | None:
    """Analyses captures that are only named."""
    from guestmark.cli import captures

    request = captures.of_files(words)
    return None if request is None else captures.answer(request)


def _show(words: list[str]) -> int | None:
    """Shows a run that is only named."""
    from guestmark.cli import shown

    return 0 if shown.plainly(words) else None


def _told(words: list[str]) -> int | None:
    """Prints the version or the first screen of the help."""
    if words in (["--version"], ["-V"]):
        from guestmark.cli.verbs import version

        text = version()
    elif words in (["--help"], ["-h"]):
        from guestmark.cli.verbs import first_screen

        text = first_screen()
    else:
        return None
    from guestmark.page.say import tell

    tell(text)
    return 0


def _open_closed_streams() -> None:
    """Gives /dev/null to standard streams that the caller has closed, before one of our files gets their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
