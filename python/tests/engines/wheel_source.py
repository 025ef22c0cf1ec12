"""Reads Python sources inside a wheel without installing it."""

import ast
import pathlib
import zipfile


class WheelSource:
    def __init__(self, path: pathlib.Path) -> None:
        self._zip = zipfile.ZipFile(path)
        self._modules: dict[str, ast.Module] = {}

    def module(self, name: str) -> ast.Module:
        if name not in self._modules:
            self._modules[name] = ast.parse(self._zip.read(name).decode())
        return self._modules[name]

    def node(self, module: str, path: str):
        """The class, function or assignment at a dotted path, e.g. "Class.method"."""
        scope: ast.AST = self.module(module)
        for part in path.split("."):
            found = [x for x in _statements(scope.body) if part in _names(x)]
            if not found:
                raise AssertionError(f"{module} has no {path}")
            scope = found[-1]
        return scope

    def parameters(self, module: str, path: str) -> list[str]:
        arguments = self.node(module, path).args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        return [name for name in names if name not in ("self", "cls")]

    def value(self, module: str, path: str):
        return ast.literal_eval(self.node(module, path).value)

    def calls(self, module: str, function: str) -> list[ast.Call]:
        """Calls in a module of anything whose last name is `function`."""
        return [
            node
            for node in ast.walk(self.module(module))
            if isinstance(node, ast.Call)
            and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) == function
        ]


def _statements(body: list[ast.stmt]):
    """Those of a body, and of the branches of its conditions."""
    for statement in body:
        yield statement
        for branch in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(statement, branch, []))


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign):
        return [getattr(statement.target, "id", "")]
    if isinstance(statement, ast.Assign):
        return [getattr(target, "id", "") for target in statement.targets]
    return []
