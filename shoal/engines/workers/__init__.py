"""Shares of an order for other processes and machines."""
