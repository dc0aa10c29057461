"""The pages for people: a dashboard, the description of the interface, and a short page that leads to both.

The supervisor records the numbers of all workers once a second (:mod:`~l2h.serving.dashboard.recorder`) into a file of
fixed size (:mod:`~l2h.serving.dashboard.ring`); whichever worker is asked reads it from there.
"""
