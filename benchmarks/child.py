"""A process for each system: `python -m benchmarks.child NAME URL`.

It reads one request a line (`{"job": "batch", "runs": 50}`) and answers each with one line.
Systems so share neither a GIL nor each other's threads, and one that fails takes no other
along; the parent decides whose turn it is.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings

from benchmarks.systems import start


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    warnings.simplefilter("ignore")
    system = start(sys.argv[1], sys.argv[2])
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = getattr(system, request.pop("job"))(**request)
            except BaseException as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
    finally:
        system.close()


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # some systems leave threads behind
