"""The command line. Start-up time is paid by every call, so heavy things are imported where they are used."""


def main() -> int:
    """Runs the command line of this process and returns its exit status; never a traceback for what is expected."""
    from guestmark.cli import faults

    try:
        from guestmark.cli.app import app

        app(prog_name="guestmark")
    except BaseException as error:
        return faults.status_after(error)
    return 0
