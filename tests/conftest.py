"""What every test relies on: one thread for tiny models, and no network.

Two threads on tiny tensors cost more than they bring, and where a machine is busy they cost a hundredfold; the setting is
made before torch is imported and is inherited by every process that a test starts.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
