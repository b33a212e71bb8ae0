"""How the terminal is used: `--style`, whose names and meanings are hyperfine's."""

from enum import StrEnum


class Style(StrEnum):
    """Whether there are colours, and a display that is drawn anew, or plain lines."""

    AUTO = "auto"  # as the terminal can
    BASIC = "basic"  # neither
    FULL = "full"  # both, whatever it is
    NOCOLOR = "nocolor"
    COLOR = "color"
    NONE = "none"  # nothing is shown

    def live(self, *, usual: bool) -> bool:
        """Whether progress is drawn anew; `usual`: the terminal is for that."""
        return usual if self is Style.AUTO else self in {Style.FULL, Style.NOCOLOR}

    def coloured(self) -> bool | None:
        """Whether there are colours; None: as the terminal can."""
        return None if self is Style.AUTO else self in {Style.FULL, Style.COLOR}
