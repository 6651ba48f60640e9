"""The imports between the modules of a package, inside functions too."""

import ast


def _imported(name, path, modules):
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[:len(parts) - node.level + 1], *([base] if base else [])])
            for one in node.names:
                yield from [x for x in (f"{base}.{one.name}", base) if x in modules][:1]


def cycles(root, package):
    """Each cycle as a list of modules."""
    modules = {}
    for path in (root / package).rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports = {name: {*_imported(name, path, modules)} - {name} for name, path in modules.items()}
    found, done = [], set()

    def visit(name, trail):
        if name in trail:
            found.append([*trail[trail.index(name):], name])
        elif name not in done:
            for other in sorted(imports[name]):
                visit(other, [*trail, name])
            done.add(name)

    for name in sorted(modules):
        visit(name, [])
    return found
