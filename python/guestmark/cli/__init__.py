"""The command line. Every call pays for start-up, so a module is imported only when its verb is used."""

import gc
import os
import sys

# Set by a shell that completes a line.
_COMPLETE = "_GUESTMARK_COMPLETE"
# Set by the launcher of a checkout: the seconds that set-up took during this call.
_SET_UP_S = "GUESTMARK_SET_UP_S"


def main() -> int:
    """Runs the command line of this process and returns its exit status; expected failures never end in a traceback."""
    # Garbage collection would take a tenth of the time in which modules are loaded.
    gc.disable()
    try:
        _open_closed_streams()
        _exclude_set_up()
        words = sys.argv[1:]
        status = _answer_without_parser(words)
        if status is None:
            status = _answer_with_parser(words)
        sys.stdout.flush()
        # Otherwise the interpreter would collect garbage in all modules once more before it exits.
        gc.freeze()
    except KeyboardInterrupt:
        # Ctrl-C may interrupt an import, so nothing more is imported here.
        return 130
    except BaseException as error:
        # Python turns Ctrl-C in the middle of a class definition into a RuntimeError.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 130
        from guestmark.cli import error_report

        return error_report.report_error(error)
    return status


def _answer_without_parser(words: list[str]) -> int | None:
    """Answers lines that need no parser, whose import takes longer than the answer. None for other lines."""
    if _COMPLETE in os.environ:
        return None
    if words in (["--version"], ["-V"], ["--help"], ["-h"]):
        from guestmark.cli import verbs
        from guestmark.page.say import tell

        is_version = words[0] in {"--version", "-V"}
        tell(verbs.describe_version() if is_version else verbs.render_first_screen())
        return 0
    if words[:1] == ["capture"] and len(words) > 1 and _are_names(words[1:]):
        from guestmark.cli.do import capture

        gc.enable()
        return capture.analyse_named_files(words[1:])
    if (
        words[:1] == ["show"]
        and len(words) <= 3
        and _are_names([word for word in words[1:] if word != "--details"])
    ):
        from guestmark.cli.do import show

        return show.show_named_run(words[1:])
    return None


def _are_names(words: list[str]) -> bool:
    """Returns whether the words name runs or files, with no option among them."""
    return not any(word.startswith("-") or not word for word in words)


def _answer_with_parser(words: list[str]) -> int:
    if _COMPLETE in os.environ:
        from guestmark.cli.completion import answer_shell

        answer_shell()
        return 0
    from guestmark.cli import app

    return app.run_command_line(words)


def _exclude_set_up() -> None:
    """Excludes the set-up of the checkout, which this call had to wait for, from the time of the command."""
    if set_up_s := os.environ.pop(_SET_UP_S, ""):
        from guestmark.engine import clock

        clock.exclude_set_up(float(set_up_s))


def _open_closed_streams() -> None:
    """Opens /dev/null as each standard stream that the caller has closed, before one of our files gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
