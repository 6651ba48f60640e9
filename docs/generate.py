"""Generates docs/reference (not under version control): a page for each public header, the Python reference from the type stubs
and docstrings, and copies of the repository's other pages. conf.py calls write_pages(); nothing is imported or compiled."""

import ast
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
OUT = DOCS / "reference"
HEADERS = ["seqpar.h", "shrink.h", "types.h", "stream.h", "scan.h", "scan_device.h", "exchange.h", "lse.h", "ring.h", "mesh.h", "layout.h", "groups.h", "plan.h",
           "attn.h", "attn_family.h", "attn_mask.h", "attn_plan.h", "attn_layout.h", "short_conv.h", "seqpar_mpi.h", "seqpar_device.cuh"]
COPIES = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing", "SECURITY.md": "security",
          "examples/README.md": "examples", "perf/README.md": "perf_binaries"}
SYMBOL = re.compile(r"\b(seqpar[A-Z]\w+|SEQPAR_[A-Z]\w+)\b(\(\))?")


def comment_text(comment):
    """The text of a /** */ or /* */ comment, without its frame."""
    body = re.sub(r"^/\*+<?|\*/$", "", comment.strip()).split("\n")
    lines = [re.sub(r"^\s*\* ?", "", line) if i else line.strip() for i, line in enumerate(body)]
    if all(line.startswith("    ") or not line.strip() for line in lines[1:]):
        lines[1:] = [line.strip() for line in lines[1:]]
    return "\n".join(line.rstrip() for line in lines if not set(line.strip()) == {"-"}).strip("\n")


def escaped(line):
    return re.sub(r"([*<\[\]|])", r"\\\1", line)


def markdown(text, links):
    """Prose as paragraphs, indented lines as literal blocks."""
    out, literal = [], []
    for line in text.split("\n") + [""]:
        if line.startswith("  ") or (literal and not line.strip()):
            literal.append(line)
            continue
        if literal:
            out += ["", "```text", *"\n".join(literal).strip("\n").split("\n"), "```", ""]
            literal = []
        line = escaped(line)
        line = re.sub(r"^(Errors|Stream|Returns):", r"**\1:**", line)
        out.append(SYMBOL.sub(lambda m: f"[`{m[0]}`](#{m[1].lower()})" if m[1].lower() in links else f"`{m[0]}`", line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out))


TOKEN = re.compile(r"/\*.*?\*/|^#define (\w+)[^\n]*(?:\\\n[^\n]*)*|^typedef (?:struct|enum)\s*\w*\s*\{.*?^\} (\w+);|"
                   r"^typedef [^;{]*?(\w+)(?:\([^;]*\))?;|^(?:SEQPAR_API|static inline|SEQPAR_DEVICE)[^;{]*?\b(\w+)\([^;{]*\)\s*[;{]|"
                   r"^(?:template[^\n]*\n)?__device__[^;{]*?\b(\w+)\([^;{]*\)\s*[;{]", re.S | re.M)


def symbols_of(text):
    """(name, comment, declaration) and (None, section text, "") in order."""
    found, comment = [], ""
    end = 0
    for match in TOKEN.finditer(text):
        if text[end:match.start()].strip() and not match[0].startswith("/*"):
            if re.search(r"\S", re.sub(r"#\w+[^\n]*|extern \"C\" \{|\}", "", text[end:match.start()])):
                comment = ""
        end = match.end()
        if match[0].startswith("/*"):
            if match[0].startswith("/**<"):
                continue
            if match[0].startswith("/**"):
                comment = comment_text(match[0])
            elif re.match(r"/\* -{20}", match[0]):
                found.append((None, comment_text(match[0]), ""))
                comment = ""
            continue
        name = next((group for group in match.groups() if group), None)
        if name is None or name.endswith("_H_") or name == "SEQPAR_API":
            continue
        declaration = match[0].rstrip("{ \n")
        if match[0].startswith("#define") and name.endswith("_INITIALIZER"):
            declaration = f"#define {name} ..."
        if declaration.startswith("SEQPAR_API "):
            declaration = re.sub(r"^ {11}", "", declaration[len("SEQPAR_API "):], flags=re.M)
        found.append((name, comment, declaration.replace("/**<", "/*")))
        comment = ""
    return found


def c_pages():
    files = {name: (ROOT / "include" / "seqpar" / name).read_text() for name in HEADERS}
    parsed = {name: symbols_of(text) for name, text in files.items()}
    links = {symbol.lower() for symbols in parsed.values() for symbol, comment, _ in symbols
             if symbol and (comment or not symbol.endswith("_INITIALIZER"))}
    for name, text in files.items():
        head = comment_text(re.match(r"/\*.*?\*/|(?://[^\n]*\n)+", text, re.S)[0]).replace("SPDX-License-Identifier: Apache-2.0", "")
        first, _, rest = head.partition("\n")
        rest = re.sub(r"^(//)?\s*seqpar\S* - ", "", first) + "\n" + rest
        rest = rest[0].upper() + rest[1:]
        out = [f"(header-{name.replace('.', '-').replace('_', '-')})=", f"# {name}", "", f"`#include <seqpar/{name}>`", ""]
        out.append(markdown(re.sub(r"^// ?", "", rest, flags=re.M).strip("\n"), links))
        seen, sections = set(), 0
        for symbol, comment, declaration in parsed[name]:
            if symbol is None:
                heading, _, body = comment.strip().partition("\n")
                out += ["", f"## {escaped(heading.rstrip('.'))}", "", markdown(body.strip("\n"), links)]
                sections += 1
                continue
            if symbol in seen or (symbol.endswith("_INITIALIZER") and not comment):
                continue
            if not sections:
                out += ["", "## Declarations"]
                sections = 1
            seen.add(symbol)
            out += ["", f"({symbol.lower()})=", f"### {symbol}", "", markdown(comment, links), "", "```c", declaration, "```"]
        yield f"{name.replace('.', '_')}.md", "\n".join(out) + "\n"


def docstrings(package):
    """Docstrings of functions, classes and methods of all modules of a package, by name."""
    found = {}
    for path in sorted(package.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node)
                if text:
                    found.setdefault(node.name, text)
                if isinstance(node, ast.ClassDef):
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method):
                            found[f"{node.name}.{method.name}"] = ast.get_docstring(method)
    return found


def signature(node, method=False):
    clone = ast.parse(ast.unparse(node)).body[0]
    if method and clone.args.args:
        clone.args.args = clone.args.args[1:]
    returns = f" -> {ast.unparse(clone.returns)}" if clone.returns else ""
    return f"({ast.unparse(clone.args)}){returns}"


ARGUMENT = re.compile(r"^( *)(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*) {2,}(?=\S)")


def body_of(text):
    """A docstring as Markdown; a table of arguments becomes a field list."""
    out, column = [], 0
    for line in (text or "").split("\n"):
        match = ARGUMENT.match(line)
        if match:
            if not column:
                out.append("")
            column = match.end()
            out.append(f":param {match[2].replace('*', '')}: {escaped(line[match.end():])}")
        elif column and line.strip() and len(line) - len(line.lstrip()) >= column:
            out[-1] += " " + escaped(line.strip())
        else:
            if column:
                out.append("")
            column = 0
            out.append(line if line.startswith("    ") else escaped(line))
    return "\n".join(out).rstrip()


def entries(stub, found):
    """MyST directives for the functions and classes of a stub."""
    out, overloads = [], {}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            overloads.setdefault(node.name, []).append(node)
    done = set()
    for node in stub.body:
        name = getattr(node, "name", "_")
        if name.startswith("_") or name in done:
            continue
        done.add(name)
        if isinstance(node, ast.FunctionDef):
            forms = overloads[name]
            head = f"{name}{signature(forms[-1])}" if len(forms) == 1 else "\n".join(name + signature(form) for form in forms)
            out += ["", f"````{{py:function}} {head}", "", body_of(found.get(name)), "````"]
        elif isinstance(node, ast.ClassDef):
            init = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
            arguments = signature(init, True).split(" -> ")[0] if init else ""
            out += ["", f"`````{{py:class}} {name}{arguments}", "", body_of(found.get(name))]
            for member in node.body:
                if isinstance(member, ast.AnnAssign):
                    out += ["", f"````{{py:attribute}} {member.target.id}", f":type: {ast.unparse(member.annotation)}", "````"]
                elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    property_ = any(getattr(d, "id", "") == "property" for d in member.decorator_list)
                    kind, form = ("property", "") if property_ else ("method", signature(member, True))
                    out += ["", f"````{{py:{kind}}} {member.name}{form}", "",
                            body_of(found.get(f"{name}.{member.name}")), "````"]
            out += ["`````"]
    return out


MODULES = {"seqpar": "seqpar/__init__.pyi", "seqpar.torch": "seqpar/torch/__init__.pyi",
           "seqpar.torch.transformers": "seqpar/torch/transformers.pyi", "seqpar.torch.accelerate": "seqpar/torch/accelerate.pyi",
           "seqpar.torch.mamba": "seqpar/torch/mamba.pyi", "seqpar.torch.megatron": "seqpar/torch/megatron.pyi", "seqpar.torch.diffusers": "seqpar/torch/diffusers.pyi",
           "seqpar.torch.torchtitan": "seqpar/torch/torchtitan.pyi",
           "seqpar.torch.generation": "seqpar/torch/generation.pyi", "seqpar.torch.te": "seqpar/torch/te.pyi",
           "seqpar.torch.fla": "seqpar/torch/fla.pyi", "seqpar.torch.ring_flash_attn": "seqpar/torch/ring_flash_attn.pyi",
           "seqpar.jax": "seqpar/jax/__init__.pyi"}


def stub_of(path):
    """A stub, with the functions of the stub that it imports by *."""
    stub = ast.parse(path.read_text())
    for node in stub.body[:]:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            stub.body += stub_of(path.with_name(f"{node.module}.pyi")).body
    return stub


def python_pages():
    for module, stub_file in MODULES.items():
        folder = ROOT / "python" / stub_file
        stub = stub_of(folder)
        intro = ast.get_docstring(ast.parse(folder.with_suffix(".py").read_text()))
        package = folder.parent
        first, _, rest = intro.partition("\n")
        out = [f"# {module}", "", escaped(first), "", body_of(rest.strip("\n")), "", f"```{{py:module}} {module}", "```"]
        yield f"{module.replace('.', '_')}.md", "\n".join(out + entries(stub, docstrings(package))) + "\n"


def copies():
    for path, name in COPIES.items():
        text = (ROOT / path).read_text()
        folder = pathlib.PurePosixPath(path).parent

        def link(match, folder=folder):
            target, _, anchor = match[2].partition("#")
            if re.match(r"[a-z]+:", match[2]) or not target:
                return match[0]
            file = (ROOT / folder / target).resolve()
            anchor = f"#{anchor}" if anchor else ""
            return f"[{match[1]}]({relative(OUT, file)}{anchor})" if relative(OUT, file) else match[1]

        yield f"{name}.md", re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, text)


def relative(folder, file):
    """The site's page for a file of the repository, relative to a folder of docs; None if there is none."""
    try:
        name = file.relative_to(ROOT).as_posix()
    except ValueError:
        return None
    if name in COPIES:
        page = OUT / f"{COPIES[name]}.md"
    elif file.parent == ROOT / "include" / "seqpar" and file.name in HEADERS:
        page = OUT / f"{file.name.replace('.', '_')}.md"
    elif file.is_relative_to(DOCS) and file.suffix in (".md", ".svg"):
        page = file
    elif name == "README.md":
        page = DOCS / "index.md"
    else:
        return None
    up = pathlib.PurePosixPath(*[".."] * len(folder.relative_to(DOCS).parts))
    return (up / page.relative_to(DOCS).as_posix()).as_posix()


def write_pages():
    OUT.mkdir(exist_ok=True)
    pages = dict([*c_pages(), *python_pages(), *copies()])
    for name, text in pages.items():
        path = OUT / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in OUT.glob("*.md"):
        if path.name not in pages:
            path.unlink()


if __name__ == "__main__":
    write_pages()
