"""Devices as data: what one can do, the networks that join them, their files and measurements."""
