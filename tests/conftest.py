"""What every test relies on: one thread for tiny models, and no network.

Two threads on tiny tensors cost more than they bring, and where a machine is busy they cost a hundredfold; the setting
is made before torch is imported and is inherited by every process that a test starts. Where a test does use two, they
wait asleep: spinning for each other, they cost twenty times the work itself on a busy machine.
"""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("LITSPEC_KERNELS", "required")  # a kernel that cannot be built is a failure, not a fallback
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell that starts the tests in the background has them ignore Ctrl-C, and every process that they start as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
