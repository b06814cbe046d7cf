"""Starting, watching and resuming a federation on its owner's machine.

==============  ====================================================================
``up``          a federation on this machine: its places and processes
``supervisor``  bring it up, keep it going, say what happens
``superlink``   Flower's SuperLink behind two doors, in a process of its own
``owner``       the owner's secrets, and a client of the SuperLink that uses them
==============  ====================================================================
"""
