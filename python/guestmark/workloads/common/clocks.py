"""Two clocks: durations on the host's and the guest's clock must agree, or the trial gets a warning."""

RELATIVE_TOLERANCE = 0.01
ABSOLUTE_TOLERANCE_S = 0.005


def disagreement(wall_s: float, guest_wall_s: float, error_s: float = 0.0) -> str:
    """A warning when the clocks differ by more than 1 %, 5 ms and `error_s` together; else empty.

    `error_s` is the known uncertainty of the host's figure. The host's clock is the authority.
    """
    difference = guest_wall_s - wall_s
    if abs(difference) <= RELATIVE_TOLERANCE * wall_s + ABSOLUTE_TOLERANCE_S + error_s:
        return ""
    share = f" ({difference / wall_s:+.1%})" if wall_s > 0 else ""
    return f"the clocks disagree: {wall_s:.4g} s on the host's, {guest_wall_s:.4g} s on the guest's{share}"
