"""The colours of every plot: Okabe and Ito's, which the common kinds of colour blindness can tell apart."""

CLIENT, SERVER, SYSTEM = "#0072B2", "#D55E00", "#009E73"
CONFIDENCE, LABEL_FREE = "#CC79A7", "#56B4E9"
INK, MUTED, FAINT = "#222222", "#767676", "#C9C9C9"
