#!/usr/bin/env python3
"""Writes seqpar/_bindings.py from the public headers: enumerators, constants, structures with their initializers, and
the prototypes of all functions.

    python/generate_bindings.py [include/seqpar [python/seqpar/_bindings.py]]

The headers are plain C of one style, so that a few patterns read them; whatever the patterns do not know is an error.
tests/test_abi.py compares the outcome with what the C compiler says of the same headers.
"""

import pathlib
import re
import sys

HEADERS = ("types.h", "scan.h", "stream.h", "seqpar.h", "shrink.h", "layout.h", "exchange.h", "lse.h", "ring.h", "plan.h", "groups.h",
           "mesh.h", "short_conv.h", "attn_family.h", "attn_mask.h", "attn_plan.h", "attn_layout.h", "attn.h")
NUMBERS = {"int": "c_int", "unsigned": "c_uint", "size_t": "c_size_t", "int32_t": "c_int32", "int64_t": "c_int64", "uint64_t": "c_uint64",
           "uint8_t": "c_uint8", "float": "c_float", "double": "c_double", "char": "c_char"}


def fail(what, text):
    raise SystemExit(f"generate_bindings: {what}: {text.strip()[:200]!r}")


class Headers:
    def __init__(self, folder):
        text = "\n".join((folder / name).read_text() for name in HEADERS)
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S).replace("\\\n", " ")
        text = re.sub(r"//[^\n]*", " ", text)
        self.macros = dict(re.findall(r"^#define (SEQPAR_[A-Z_0-9]+) +(.+)$", text, flags=re.M))
        self.text = re.sub(r"^\s*#[^\n]*", "", text, flags=re.M)
        self.enums = re.findall(r"typedef enum \{(.*?)\} (\w+);", self.text, flags=re.S)
        self.structs = re.findall(r"typedef struct \{(.*?)\} (\w+);", self.text, flags=re.S)
        self.handles = re.findall(r"typedef struct \w+\* (\w+);", self.text)
        self.functions = re.findall(r"SEQPAR_API ([\w ]+?[ *]+)(seqpar\w+)\((.*?)\);", self.text, flags=re.S)
        if len(self.functions) != self.text.count("SEQPAR_API"):
            fail("functions", f"{len(self.functions)} read of {self.text.count('SEQPAR_API')}")
        self.values = {}
        self.read_numbers()
        self.names = {name for _, name in self.structs}

    def read_numbers(self):
        for body, name in self.enums:
            for entry in filter(None, (part.strip() for part in body.split(","))):
                match = re.fullmatch(r"(\w+)\s*=\s*(\d+)", entry)
                if not match:
                    fail(f"enumerator of {name}", entry)
                self.values[match[1]] = int(match[2])
        for name, body in self.macros.items():
            body = re.sub(r"SEQPAR_VERSION\((\w+), (\w+), (\w+)\)", r"(\1 * 10000 + \2 * 100 + \3)", body)
            body = re.sub(r"\(u?int64_t\)|(?<=[0-9a-f])u\b", "", body)
            try:
                self.values[name] = int(eval(body, {"__builtins__": {}}, self.values))
            except (SyntaxError, NameError, TypeError):
                if not name.endswith(("_INITIALIZER", "_API")):
                    fail(f"macro {name}", body)

    def type(self, spelling):
        """The ctypes name of a C type without a declarator."""
        words = spelling.replace("const", " ").strip()
        pointers = words.count("*")
        base = words.replace("*", "").strip()
        if pointers or base in self.handles:
            return "c_char_p" if base == "char" and pointers == 1 and "const" in spelling else "c_void_p"
        if base in NUMBERS:
            return NUMBERS[base]
        if base in self.names:
            return base
        if any(base == name for _, name in self.enums):
            return "c_int"
        fail("type", spelling)

    def fields(self, body):
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            function = re.fullmatch(r"\w+\s*\(\*(\w+)\)\(.*\)", declaration, flags=re.S)
            if function:
                yield function[1], "c_void_p"
                continue
            match = re.fullmatch(r"((?:const\s+)?\w+(?:\s*\*)*(?:\s*const\*)?)\s*(\w[\w\[\], ]*)", declaration)
            if not match:
                fail("field", declaration)
            base, names = match.groups()
            for name in names.split(","):
                name = name.strip()
                array = re.fullmatch(r"(\w+)\[(\w+)\]", name)
                kind = self.type(base)
                if array:
                    size = array[2] if array[2].isdigit() else self.values[array[2]]
                    yield array[1], f"{kind} * {size}"
                else:
                    yield name, kind

    def initializer(self, name):
        """The values of SEQPAR_..._INITIALIZER for a structure, those behind size, magic and version; None: none."""
        stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.removesuffix("_t").removeprefix("seqpar")).upper()
        for candidate in (f"SEQPAR_{stem}", f"SEQPAR_{stem.removesuffix('_DESC')}", f"SEQPAR_{stem.removesuffix('_ARGS')}"):
            body = self.macros.get(candidate + "_INITIALIZER")
            if body:
                break
        else:
            return None
        body = re.sub(r"\([\w *]+\*(?: const\*)?\)0|NULL", "None", body.strip())
        body = re.sub(r"sizeof\(\w+\)", "0", body).replace("{", "(").replace("}", ",)")
        body = re.sub(r",\s*,", ",", body)
        body = re.sub(r"(?<=\d)f\b", "", body)
        values = eval(" ".join(body.split()), {"__builtins__": {}}, self.values)
        return [bytes() if value == "" else value for value in values[3:]]


def parameter(headers, text):
    text = text.strip()
    if "(*" in text:
        return "c_void_p"
    match = re.fullmatch(r"(.*?[ *])\w+(\[\w*\])?", text, flags=re.S)
    kind = headers.type(match[1] + ("*" if match[2] else ""))
    return "c_void_p" if kind == "c_char_p" else kind


def generate(folder):
    headers = Headers(folder)
    lines = ['"""Generated by generate_bindings.py from the public headers. Do not edit."""', "",
             "from ctypes import (Structure, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_ubyte, c_uint,",
             "                    c_uint8, c_void_p)", "", "CONSTANTS = {"]
    lines += [f'    "{name}": {value},' for name, value in headers.values.items() if name.startswith("SEQPAR_")]
    lines += ["}", "", "ENUMS = {"]
    for body, name in headers.enums:
        entries = re.findall(r"(\w+)\s*=", body)
        lines += [f'    "{name}": {{'] + [f'        "{entry}": {headers.values[entry]},' for entry in entries] + ["    },"]
    lines += ["}", ""]
    for body, name in headers.structs:
        lines += ["", f"class {name}(Structure):", "    _fields_ = ["]
        for field, kind in headers.fields(body):
            if name == "seqparUniqueId":
                kind = kind.replace("c_char", "c_ubyte")  # c_char arrays end at a zero byte
            lines.append(f'        ("{field}", {kind}),')
        lines += ["    ]", ""]
    lines += ["", "# Values of the initializers, for the fields behind size, magic and version.", "INITIALIZERS = {"]
    for _, name in headers.structs:
        values = headers.initializer(name)
        if values is not None:
            lines.append(f'    "{name}": {tuple(values)!r},')
    lines += ["}", "", "# Result and argument types of each function.", "PROTOTYPES = {"]
    for result, name, arguments in headers.functions:
        kinds = [] if arguments.strip() in ("", "void") else [parameter(headers, part) for part in arguments.split(",")]
        lines.append(f'    "{name}": ({headers.type(result)}, [{", ".join(kinds)}]),')
    return "\n".join(lines + ["}", ""])


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent
    source = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "include" / "seqpar"
    target = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else here / "seqpar" / "_bindings.py"
    target.write_text(generate(source))
