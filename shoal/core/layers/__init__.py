"""What a network's layers need to be trained as a pure function.

- drawing        dropout and other layers that draw, with numbers that follow from a key
- normalisation  batch normalisation as a pure function; which layers are in training mode
- keeping        tensors that such a function would lose are refused
- fitting        networks that cannot be trained as they say are refused
"""
