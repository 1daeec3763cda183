"""`python -m dynamo_llm` is the `dynamo-llm` command."""

import sys

from dynamo_llm.cli import main

if __name__ == "__main__":
    sys.exit(main())
