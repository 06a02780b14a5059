"""`pacerelle doctor`: one line for each thing that has to be right, with what to do where it is not.

::

    command    what is typed, what is printed
    examine    asks everybody, in order
    check      one line
    local      what can be seen from outside: Python, versions, folder, lock, sockets
    daemon     what a running daemon says, or its program where none runs
    around     the service, hosts' entries
    report     a file of all that, to be posted
    redact     what must not be in that file

It works whatever state the daemon is in: what cannot be looked at is `skipped`, with the reason.
"""
