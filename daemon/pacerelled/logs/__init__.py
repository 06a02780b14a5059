"""What the daemon says of itself, and where that goes.

::

    setup      chooses the place, sets and changes the level
    journal    systemd's journal, with fields
    capped     the log file in the daemon's folder, which does not grow for ever
    shapes     a record as a line of text or of JSON
    repeats    counts what is said again and again instead of saying it

Records name things and places, never what people wrote, a token or a key; of exceptions only kind and place are shown.
"""
