"""Data: where samples come from, how they are dealt to clients, how unequal that made them."""
