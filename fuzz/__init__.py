"""Random runs that no test has thought of, and laws that each must keep: ``python -m fuzz``.

- ``draw.py``: what a seed stands for: a config, the clients' rows, limits of the engine, laws
- ``networks.py``, ``authored.py``, ``samples.py``, ``settings.py``: what draws are made of
- ``play.py``: a draw played on an engine, and everything that it leaves
- ``by_hand.py``: federated averaging in plain torch, for any network and optimiser
- ``laws.py``: what must be equal, and how far apart it may be
- ``shrink.py``: a smaller draw that breaks the same law
- ``fresh.py``, ``processes.py``: runs in a process that has played nothing, and crashes
- ``__main__.py``: the command
"""
