"""What a host sees of the daemon: tools, a prompt and two resources, served over every transport."""
