"""The tools of the Paseo bridge: imported, and listed, only while it is on."""
