"""What a host sees of the daemon: eight tools, a prompt and two resources, served over every transport."""
