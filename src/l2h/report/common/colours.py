"""The colours of every plot: Okabe and Ito's, which the common kinds of colour blindness can tell apart."""

from collections.abc import Iterable
from itertools import cycle

from l2h.decision import Answerer

CLIENT, SERVER, SYSTEM = "#0072B2", "#D55E00", "#009E73"
#: The student, and servers after the first.
STUDENT, SERVERS = "#56B4E9", ("#E69F00", "#CC79A7", "#8C510A", "#F0E442")
CONFIDENCE, LABEL_FREE = "#CC79A7", "#56B4E9"
INK, MUTED, FAINT, RIVAL = "#222222", "#767676", "#C9C9C9", "#9A9A9A"
BACKGROUND, MARKED = "#FFFFFF", "#F3E6B3"
#: The variable of a page's style sheet that stands for a colour, so that a plot follows the page into dark mode.
VARIABLES = {
    **{CLIENT: "blue", SERVER: "vermillion", SYSTEM: "green", STUDENT: "sky"},
    **dict(zip(SERVERS, ("orange", "pink", "brown", "yellow"), strict=True)),
    **{INK: "ink", MUTED: "soft", FAINT: "faint", RIVAL: "rival", BACKGROUND: "card", MARKED: "marked"},
}
#: The same for text, which needs more contrast than a line.
TEXT_VARIABLES = {CLIENT: "client", SERVER: "server", SYSTEM: "system", MUTED: "soft"}


def answerer_colours(answerers: Iterable[Answerer]) -> dict[str, str]:
    """Return the colour of every answerer by its name."""
    servers, local = cycle((SERVER, *SERVERS)), {"client": CLIENT, "student": STUDENT}
    return {one.name: next(servers) if one.remote else local[one.name] for one in answerers}
