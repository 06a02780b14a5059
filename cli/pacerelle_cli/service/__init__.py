"""`pacerelle service`: the daemon as a service of the user, by systemd or launchd.

::

    commands   what is typed, what is printed
    manager    what both service managers can do, and which one is here
    systemd, launchd    the two
    render     their files, from the templates in systemd/ and launchd/
    record     service.json in the daemon's folder: that a service is installed, and how it is started
"""
