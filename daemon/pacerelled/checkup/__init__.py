"""What the daemon can find out about itself for `pacerelle doctor`: its store, its keys, its relays.

::

    finding    one line of the result
    runtime    the libraries
    secrets    where the key and the tokens come from
    store      the file, also while no daemon runs
    network    the way to a relay's address
    running    all of it, in a running daemon; with a round trip through each agent's relay
    resting    all of it but the round trips, while none runs (pacerelled.offline)
"""
