"""Starts the ranks of a run on this node, and ends them together."""
