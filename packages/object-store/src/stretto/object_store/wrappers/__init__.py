"""Stores around stores."""
