"""`pacerelle man`: manual pages out of the commands' own help, so that the two cannot differ.

::

    pages      what is on a page, from click's commands
    roff       a page in the language of man(7)
    command    writes them
"""
