"""Evidence: the estimate of the log marginal likelihood that centralised training is judged by."""

from __future__ import annotations

# Values of the key `evidence`, and what people read. In files an estimate of either kind is called lml.
NAMES = {"lml": "L_ML", "laplace": "Laplace evidence"}
