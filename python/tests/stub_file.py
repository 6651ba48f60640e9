"""Reads .pyi files, and compares them with modules: names, parameters, their kinds and whether they have defaults."""

import ast
import dataclasses
import inspect
import pathlib
import types


@dataclasses.dataclass
class Stub:
    functions: dict  # by name, the overloads, as (name, kind, whether there is a default) of each parameter
    classes: dict    # by name, the names of their public attributes
    literals: dict   # by name, the values of a Literal[...]


def _parameters(function):
    found, given = [], function.args
    positional = [*given.posonlyargs, *given.args]
    first = len(positional) - len(given.defaults)
    found += [(x.arg, "POSITIONAL_OR_KEYWORD", i >= first) for i, x in enumerate(positional)]
    if given.vararg:
        found.append((given.vararg.arg, "VAR_POSITIONAL", False))
    found += [(x.arg, "KEYWORD_ONLY", default is not None) for x, default in zip(given.kwonlyargs, given.kw_defaults)]
    if given.kwarg:
        found.append((given.kwarg.arg, "VAR_KEYWORD", False))
    return found


def _attributes(body):
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def read(path):
    stub = Stub({}, {}, {})
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            stub.functions.update(read(path.with_name(f"{node.module}.pyi")).functions)
        elif isinstance(node, ast.FunctionDef):
            stub.functions.setdefault(node.name, []).append(_parameters(node))
        elif isinstance(node, ast.ClassDef):
            stub.classes[node.name] = {name for name in _attributes(node.body) if not name.startswith("_")}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and getattr(node.value.value, "id", "") == "Literal":
            stub.literals[node.targets[0].id] = ast.literal_eval(node.value.slice)
    return stub


def public(module):
    """A module without __all__, as compare() wants one: with the public functions and classes that are its own."""
    own = {name: x for name, x in vars(module).items()
           if not name.startswith("_") and callable(x) and getattr(x, "__module__", None) == module.__name__}
    return types.SimpleNamespace(__all__=sorted(own), **own)


def compare_names(abi):
    """The names in _names.pyi equal those of the library's enumerations."""
    names = read(pathlib.Path(abi.__file__).with_name("_names.pyi")).literals
    assert {*names["Softmax"], *names["Linear"]} == set(abi.ATTN_ALGORITHMS)
    assert {*names["Softmax"]} & {*names["Linear"]} == {"auto", "local"}
    assert set(names["Scan"]) == set(abi.ALGORITHMS) and set(names["Kind"]) == set(abi.LAYOUTS)


def compare(stub, module, options, ignored=()):
    """`options`: by function, the names that its **options accept; {"**options"} if the stub also has **options."""
    assert {*stub.functions, *stub.classes} <= set(module.__all__), {*stub.functions, *stub.classes} - set(module.__all__)
    missing = set(module.__all__) - {*stub.functions, *stub.classes, "Error", "SAVE_OPS"}
    assert not missing, missing
    for name, overloads in stub.functions.items():
        real = [(x.name, x.kind.name, x.default is not x.empty)
                for x in inspect.signature(getattr(module, name)).parameters.values() if x.name not in ignored]
        more = options.get(name)
        if more is not None and more != {"**options"}:
            real = [x for x in real if x[1] != "VAR_KEYWORD"]
            real += [(option, "KEYWORD_ONLY", True) for option in more if option not in {x[0] for x in real}]
        for written in overloads:
            # An overload of a constant has no default for it; the order of options does not matter.
            shown = lambda parameters: (sorted((n, k) for n, k, _ in parameters if k == "KEYWORD_ONLY"),
                                        [x for x in parameters if x[1] != "KEYWORD_ONLY"])
            assert shown(written) == shown(real), (name, written, real)
        for parameter in real:
            assert any(parameter in written for written in overloads), (name, parameter)
    for name, attributes in stub.classes.items():
        real = getattr(module, name)
        fields = {x.name for x in dataclasses.fields(real)} if dataclasses.is_dataclass(real) else set()
        source = inspect.getsource(real)
        for attribute in attributes:
            assert hasattr(real, attribute) or attribute in fields or f"self.{attribute}" in source, (name, attribute)
