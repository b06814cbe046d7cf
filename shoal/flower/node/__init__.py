"""A member's side.

- node        answers orders with its own data, memories and key
- masker      secure aggregation, the node's half
- connection  the node's process and its connection
- own_data    a node's data, read and checked on the node
- figures     rows before they are prepared, and what a member tells of them
"""
