"""Whether a Flower server answers: ``python -m simulations.deployment.health HOST:PORT CA.crt``."""

from __future__ import annotations

import ssl
import sys
import urllib.request


def main() -> None:
    """Exit with status 0 if it does, with its certificate signed by that authority."""
    address, authority = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    urllib.request.urlopen(f"https://{address}/health", timeout=5, context=context).close()


if __name__ == "__main__":
    main()
