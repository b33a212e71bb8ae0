"""How the terminal is used: `--style`, with hyperfine's names and meanings."""

from enum import StrEnum


class Style(StrEnum):
    """Whether there are colours, and whether progress is redrawn or printed as plain lines."""

    # Whatever the terminal can do.
    AUTO = "auto"
    # Neither colours nor redrawing.
    BASIC = "basic"
    # Both, even if standard error is not a terminal.
    FULL = "full"
    NOCOLOR = "nocolor"
    COLOR = "color"
    # Nothing is shown at all.
    NONE = "none"

    def is_redrawn(self, *, by_default: bool) -> bool:
        """Returns whether progress is redrawn in place; `by_default` tells whether the terminal can do that."""
        return by_default if self is Style.AUTO else self in {Style.FULL, Style.NOCOLOR}

    def has_colours(self) -> bool | None:
        """Returns whether there are colours; None leaves it to the terminal."""
        return None if self is Style.AUTO else self in {Style.FULL, Style.COLOR}
