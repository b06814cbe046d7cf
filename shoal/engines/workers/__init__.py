"""What goes to other processes and machines.

- shares  an order cut into shares, described in plain values
- work    shares go out to whoever is free; what a worker does with one and sends back
- ray     actors on a Ray cluster
"""
