"""What a config may say, and how it becomes a plan.

- messages     what is wrong, in one sentence
- schema       every key: its default, what it is, what it must be
- reference    the same for people and for editors
- read         YAML with line numbers, --set
- version_0_1  what version 0.1 meant where its run directories say nothing
- own_names    which names are code of the user's, and where that comes from
- adapters     adapters of a config, and the file that a base comes from
- subject      the task and the world of a config
- gradients    how its network is differentiated, compared with torch's own gradient
- engine       which engine runs the clients, and on which device
- build        from a config to everything a run needs; every check that can fail fails here
"""

from shoal.config.read import load, load_run, located, read
from shoal.config.schema import Config, from_mapping

__all__ = [
    "Config",
    "from_mapping",
    "load",
    "load_run",
    "located",
    "read",
]
