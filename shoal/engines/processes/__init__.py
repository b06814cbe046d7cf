"""Worker processes on this machine: one thread each, tensors in shared memory.

Workers are forked, not spawned. A spawned worker imports torch again (seconds before the first
round) and needs the program as bytes, which closures inside a task do not allow; a forked one has
the program and the data already, on the very pages of its parent. What makes forking dangerous
beside torch are thread pools that do not exist in the child, so neither side ever has more than
one thread in an operation (as in torch's own data loader), workers do not print, and nothing that
a worker uses is guarded by a lock of another thread.
"""

from shoal.engines.processes.engine import Processes

__all__ = ["Processes"]
