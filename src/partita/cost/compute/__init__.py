"""Compute time: a roofline per kernel, copies, and axes along which all devices do the same."""
