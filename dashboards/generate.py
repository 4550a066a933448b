"""Prints one of the dashboards as Grafana's JSON. `cargo xtask docs` writes all of them.

usage: generate.py fleet|namespace|leaks|agent
"""

import importlib
import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(importlib.import_module(sys.argv[1]).DASHBOARD, cls=JSONEncoder, indent=2))
