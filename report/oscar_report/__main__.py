"""oscar report: result files of one folder as one HTML page and a PDF.

Called by `oscar report` and scripts/report with the folder and the path of the page; the PDF lies
beside it. Exit status: 0 done, 1 an error (one line on stderr), 2 wrong usage, 130 interrupted.
"""

import argparse
import importlib
import os
import pathlib
import re
import signal
import stat
import sys
import tempfile

import load
import page

# Also in scripts/lib.sh, which installs them.
PACKAGES = {"matplotlib": "matplotlib==3.11.2", "weasyprint": "weasyprint==70.0"}
ERROR_EXIT, USAGE_EXIT, INTERRUPTED_EXIT = 1, 2, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
HEAD_BYTES = 1024
temporary_names = set()  # of files that exist


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


def pdf_mark(version):
    """The last line of a PDF of ours, behind the end that readers look for."""
    return f"%%EOF\n% oscar report {version}\n"


def is_ours(path):
    """A page begins as render() begins it, a PDF ends with our mark; without a version in those of
    before 0.1.0. That a text speaks of the report says nothing."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES).decode("utf-8", "replace")
        file.seek(max(0, os.fstat(file.fileno()).st_size - HEAD_BYTES))
        tail = file.read().decode("latin-1")
    version = r"(?: [0-9A-Za-z.+-]{1,40})?"
    generator = re.escape(page.GENERATOR).replace(re.escape(" {}"), version)
    viewport = r'(?:<meta name="viewport" content="[^"<>]*">)?'
    if re.match(re.escape(page.HEAD) + viewport + generator, head):
        return True
    mark = re.escape(pdf_mark("{}")).replace(re.escape(" {}"), version)
    return head.startswith("%PDF-") and re.search(mark + r"\Z", tail) is not None


class Output:
    """A file that others see as it was or with all of the new bytes. A link is followed; what is no
    report of ours is never replaced; an existing file's permissions are kept."""

    def __init__(self, path):
        self.path = path
        with self.said():
            self.target = pathlib.Path(os.path.realpath(path))
            if self.target.is_symlink():
                raise load.ReportError(f"cannot write {path}: its links lead nowhere; give a file")
            if str(path).startswith(("/dev/", "/proc/")):
                raise load.ReportError(f"cannot write {path}: it is no file on disk; give one")
            self.mode = self.mode_of_target()
        self.name = None

    def said(self):
        return Said(self.path)

    def mode_of_target(self):
        try:
            status = os.stat(self.target)
        except FileNotFoundError:
            if not self.target.parent.is_dir():
                raise
            umask = os.umask(0)
            os.umask(umask)
            return 0o666 & ~umask
        if stat.S_ISDIR(status.st_mode):
            raise load.ReportError(f"cannot write {self.path}: it is a folder; give a file")
        if not stat.S_ISREG(status.st_mode):
            raise load.ReportError(f"cannot write {self.path}: it is no regular file")
        if status.st_size and not is_ours(self.target):
            raise load.ReportError(
                f"will not replace {self.path}: it is no report of this program; remove it or give "
                "another name"
            )
        if not os.access(self.target, os.W_OK):
            raise load.ReportError(f"cannot write {self.path}: it may not be written to")
        return stat.S_IMODE(status.st_mode)

    def write(self, data):
        """To a temporary name beside the target."""
        with self.said():
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                descriptor, self.name = tempfile.mkstemp(dir=self.target.parent, prefix=".oscar-")
                temporary_names.add(self.name)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(descriptor, self.mode)
                os.fsync(descriptor)

    def commit(self):
        with self.said():
            os.replace(self.name, self.target)
        temporary_names.discard(self.name)


class Said:
    """An OSError becomes one line with the file's name."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, _, error, trace):
        if isinstance(error, OSError):
            raise load.ReportError(f"cannot write {self.path}: {error.strerror}") from error


def remove_temporary_files():
    for name in temporary_names:
        pathlib.Path(name).unlink(missing_ok=True)


def commit_all(outputs):
    """All or, where the first cannot be, none; nothing interrupts between them."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    done = []
    try:
        for output in outputs:
            is_new = not output.target.exists()
            output.commit()
            if is_new:
                done.append(output.target)
    except load.ReportError:
        for target in done:
            target.unlink(missing_ok=True)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def on_signal(_number, _frame):
    """At once: an exception could end in one of the libraries' own handlers."""
    remove_temporary_files()
    os.write(2, b"error: interrupted; no file was written\n")
    os._exit(INTERRUPTED_EXIT)


def only_data(weasyprint):
    """Fetches nothing but what the page holds itself."""
    return weasyprint.urls.URLFetcher(allowed_protocols=("data",))


def first_that_fails(sources):
    """The file to name when drawing has failed: the first that cannot be drawn alone."""
    for source in sources:
        try:
            page.render([source], [])
        except Exception:
            return source.name
    return "all files together"


def render(sources, unknown):
    try:
        return page.render(sources, unknown)
    except Exception as error:
        raise load.ReportError(
            f"{first_that_fails(sources)}: cannot be drawn: {type(error).__name__}: {error}"
        ) from error


def make_report(arguments):
    if arguments.page.suffix != ".html":
        raise load.ReportError(f"{arguments.page}: the page needs the ending .html")
    sources, unknown = load.load(arguments.folder)
    outputs = [Output(arguments.page)]
    if not arguments.no_pdf:
        outputs.append(Output(arguments.page.with_suffix(".pdf")))
        if outputs[0].target == outputs[1].target:
            raise load.ReportError(f"{outputs[0].path} and {outputs[1].path} are one file")
    need("matplotlib")
    weasyprint = None if arguments.no_pdf else need("weasyprint")
    html = render(sources, unknown)
    outputs[0].write(html.encode())
    if weasyprint:
        document = weasyprint.HTML(string=html, url_fetcher=only_data(weasyprint))
        pdf = document.write_pdf().rstrip().removesuffix(b"%%EOF")
        outputs[1].write(pdf + pdf_mark(sources[0].document["version"]).encode())
    commit_all(outputs)
    names = " and ".join(str(output.path) for output in outputs)
    os.write(1, os.fsencode(f"wrote {names}: {len(sources)} result files\n"))


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(f"{message} (see --help)")
        sys.exit(USAGE_EXIT)


def fail(message):
    line = "".join(" " if char < " " else char for char in message)
    print(f"error: {line}", file=sys.stderr)


def main():
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # `oscar report` held them back
    parser = Parser(prog="oscar report")
    parser.add_argument("folder")
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--no-pdf", action="store_true")
    arguments = parser.parse_args()
    try:
        make_report(arguments)
    except load.ReportError as error:
        fail(str(error))
        return ERROR_EXIT
    except Exception as error:
        fail(f"{arguments.folder}: no report can be made: {type(error).__name__}: {error}")
        return ERROR_EXIT
    finally:
        remove_temporary_files()
    return 0


if __name__ == "__main__":
    sys.exit(main())
