"""oscar report: result files of one folder as one HTML page and a PDF.

Called by `oscar report` and scripts/report with the folder and the path of the page; the PDF lies
beside it.
"""

import argparse
import importlib
import os
import pathlib
import sys
import tempfile

import load

# Also in scripts/lib.sh, which installs them.
PACKAGES = {"matplotlib": "matplotlib==3.11.2", "weasyprint": "weasyprint==70.0"}


def need(module):
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        wanted = " ".join(PACKAGES.values())
        raise load.ReportError(
            f"the report needs {module} in {sys.executable} ({reason}): run scripts/setup "
            f"--report, or install {wanted} and Debian's libpango-1.0-0 libpangoft2-1.0-0, and set "
            "OSCAR_PYTHON"
        ) from error


def check_replaceable(path):
    """What is there already must be empty or an earlier report, which names its generator."""
    data = path.read_bytes() if path.is_file() else b""
    if data and load.GENERATOR.encode() not in data:
        raise load.ReportError(
            f"will not replace {path}: it is no report of this program; remove it or give another "
            "name"
        )


def write(path, data):
    """Whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".report-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def main():
    parser = argparse.ArgumentParser(prog="oscar report")
    parser.add_argument("folder")
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--no-pdf", action="store_true")
    arguments = parser.parse_args()
    try:
        check_replaceable(arguments.page)
        if not arguments.no_pdf:
            check_replaceable(arguments.page.with_suffix(".pdf"))
        sources, unknown = load.load(arguments.folder)
        need("matplotlib")
        weasyprint = None if arguments.no_pdf else need("weasyprint")
        page = importlib.import_module("page").render(sources, unknown)
        written = [arguments.page]
        pdf = weasyprint.HTML(string=page).write_pdf() if weasyprint else None
        write(arguments.page, page.encode())
        if pdf:
            written.append(arguments.page.with_suffix(".pdf"))
            write(written[1], pdf + f"% {load.GENERATOR}\n".encode())
    except load.ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"error: a result has no {error}: it is of another version of oscar", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {arguments.page}: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    print("wrote " + " and ".join(str(path) for path in written) + f": {len(sources)} result files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
