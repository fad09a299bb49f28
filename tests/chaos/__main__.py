"""python -m tests.chaos --db postgres|sqlite --seed 1 --minutes 5"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tests.chaos import campaign, report
from tests.faults.processes import Zygote

FOLDER = Path("var").resolve() / "chaos"  # of each database: logs, ledger, answers, result.json


def main() -> int:
    """Carry campaigns out, print their tables; 1 if anything went wrong."""
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    asked.add_argument("--db", choices=("postgres", "sqlite", "both"), default="both")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--minutes", type=float, default=5.0)
    asked.add_argument("--report", type=Path, help="write the record into this page")
    given = asked.parse_args()
    kinds = ("postgres", "sqlite") if given.db == "both" else (given.db,)
    results = []
    zygote = Zygote(*campaign.MODULES)
    for kind in kinds:
        plan = campaign.Plan(kind, given.seed, given.minutes * 60)
        folder = FOLDER / kind
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        result = campaign.run(plan, folder, zygote)
        print(report.table(result.data()))
        print(result.line())
        results.append(result)
        for violation in result.violations[:50]:
            print(f"  {violation.kind}: {violation.about}")
        print(f"logs, ledger, answers and rows are in {folder}")
    zygote.close()
    if given.report:
        command = f"make chaos SEED={given.seed} MINUTES={given.minutes:g}"
        report.write(given.report, [result.data() for result in results], command)
    return 0 if all(result.is_clean for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
