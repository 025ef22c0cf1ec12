"""Instructions of the hot kernels against the committed budgets, counted by valgrind.

    instructions_test.py instruction_count budgets.json [--update]

Counts do not depend on what else the machine does, as times do. A count above its budget fails, and
so does one that has fallen below 0.9 of it: the budget then says nothing any more. --update writes
the counts, plus 2 %, as budgets; the reasons stay as they are. valgrind knows no AVX-512, so those
sets are not counted.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77  # CTest's SKIP_RETURN_CODE


def skip(reason):
    print(f"not run: {reason}")
    sys.exit(SKIPPED)


def count(program, case):
    arguments = [case["set"], case["operation"]]
    arguments += [str(case[name]) for name in ("head_dim", "rows", "bits")]
    result = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=measured_call*",
            program,
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Collected : (\d+)", result.stderr)
    if result.returncode != 0 or not found:
        sys.exit(f"{' '.join(arguments)} failed:\n{result.stderr}")
    return int(found[1])


def main():
    program, budgets = sys.argv[1], pathlib.Path(sys.argv[2])
    update = "--update" in sys.argv[3:]
    document = json.loads(budgets.read_text(encoding="utf-8"))
    if shutil.which("valgrind") is None:
        skip("valgrind is not installed")
    compiler = sys.argv[3] if len(sys.argv) > 3 and not update else document["compiler"]
    if compiler != document["compiler"]:
        skip(f"budgets are for {document['compiler']}, this is {compiler}")
    bad = 0
    for case in document["budgets"]:
        collected, budget = count(program, case), case["instructions"]
        if update:
            case["instructions"] = collected + collected // 50
        verdict = "" if 0.9 * budget <= collected <= budget else "   <-- outside"
        bad += verdict != ""
        name = "{set}/{operation}/d{head_dim}/heads{rows}/bits{bits}".format(**case)
        print(f"{name:48} {collected:8} of {budget:8}, {collected / 64:8.1f} a token{verdict}")
    if update:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        budgets.write_text(text, encoding="utf-8")
        return
    if bad:
        sys.exit(f"{bad} outside [0.9, 1] of their budget ({budgets}); see its reasons")


if __name__ == "__main__":
    main()
