"""The settings of the guest around a nested one."""

from guestmark.core.factors import Factor
from guestmark.platforms.factors import count, word


def _outer(text: str) -> str:
    if text.strip() not in ("block", "trial"):
        raise ValueError(f"{text!r} is neither block nor trial")
    return text.strip()


OUTER = Factor(
    "outer",
    "how often the outer guest of a nested platform is started: for each block or for each trial",
    _outer,
    ("block", "trial"),
)
OUTER_CPU = Factor(
    "outer_cpu",
    "the outer guest's processor model, e.g. max,svm=on; kvm inside needs one with nested virtualization",
    word,
    (r"max\,svm=on",),
)
OUTER_SMP = Factor("outer_smp", "the outer guest's number of processors", count, ("1", "2"))
FACTORS = (OUTER, OUTER_CPU, OUTER_SMP)
