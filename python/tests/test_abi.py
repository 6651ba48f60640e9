"""Compares seqpar._bindings with the headers: with the generator's output, and with a C compiler's view of the headers.

SEQPAR_LIBRARY names the library, SEQPAR_HEADERS the folder include/seqpar, CC the compiler.
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
import generate_bindings
import generate_families
from seqpar import _abi, _bindings, _families

HEADERS = pathlib.Path(os.environ["SEQPAR_HEADERS"])
STRUCTS = [value for value in vars(_bindings).values()
           if isinstance(value, type) and issubclass(value, ctypes.Structure) and value is not ctypes.Structure]


def compiled(statements):
    """The lines that a C program prints."""
    includes = "".join(f'#include "seqpar/{name}"\n' for name in generate_bindings.HEADERS)
    source = ("#include <stdio.h>\n#include <stddef.h>\n" + includes +
              "static void bytes(const char* name, const void* data, size_t n) {\n"
              "  printf(\"%s \", name);\n"
              "  for (size_t i = 0; i < n; ++i) printf(\"%02x\", ((const unsigned char*)data)[i]);\n"
              "  printf(\"\\n\");\n}\nint main(void) {\n" + "\n".join(statements) + "\nreturn 0;\n}\n")
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program"
        (pathlib.Path(folder) / "program.c").write_text(source)
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-I", HEADERS.parent, "-o", program, f"{program}.c"],
                       check=True)
        return dict(line.split(" ", 1) for line in
                    subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines())


def macro_of(name):
    """The name of the initializer that _bindings uses for a structure."""
    text = "".join((HEADERS / header).read_text() for header in generate_bindings.HEADERS)
    for macro in set(generate_bindings.re.findall(r"#define (SEQPAR_\w+_INITIALIZER)", text)):
        body = text.split(f"#define {macro}", 1)[1].split("sizeof(", 1)[1]
        if body.split(")", 1)[0] == name:
            return macro
    return None


class Abi(unittest.TestCase):
    def test_bindings_match_the_headers(self):
        self.assertEqual(generate_bindings.generate(HEADERS), (HERE / "seqpar" / "_bindings.py").read_text(),
                         "the headers have changed: run python/generate_bindings.py and commit what it writes")

    def test_families_match_their_rows(self):
        for name, text in generate_families.generate(HERE.parent).items():
            self.assertEqual(text, (HERE.parent / name).read_text(),
                             f"rows or headers have changed: run python/generate_families.py and commit {name}")

    def test_only_an_explicit_reserve_keeps_states_that_need_many_bytes(self):
        levels = {family: [_families.reserve_of(family, reserve) for reserve in (None, True, False)]
                  for family in ("gla", "scalar", "gated_delta")}
        self.assertEqual(levels, {"gla": [1, 2, 0], "scalar": [1, 2, 0], "gated_delta": [0, 2, 0]})

    def test_structures_match_the_compilers_layout(self):
        statements, expected = [], {}
        for struct in STRUCTS:
            name = struct.__name__
            statements.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected[name] = str(ctypes.sizeof(struct))
            for field, *_ in struct._fields_:
                place = getattr(struct, field)
                statements.append(f'printf("{name}.{field} %zu+%zu\\n", offsetof({name}, {field}), '
                                  f'sizeof((({name}*)0)->{field}));')
                expected[f"{name}.{field}"] = f"{place.offset}+{place.size}"
        self.assertGreater(len(STRUCTS), 20)
        self.assertEqual(compiled(statements), expected)

    def test_constants_match_the_compiler(self):
        values = dict(_bindings.CONSTANTS)
        for entries in _bindings.ENUMS.values():
            values.update(entries)
        statements = [f'printf("{name} %lld\\n", (long long)({name}));' for name in values]
        self.assertEqual(compiled(statements), {name: str(value) for name, value in values.items()})

    def test_initializers_give_the_same_bytes(self):
        statements, expected = [], {}
        for name in _bindings.INITIALIZERS:
            statements.append(f"{{ static const {name} x = {macro_of(name)}; bytes(\"{name}\", &x, sizeof x); }}")
            expected[name] = bytes(_abi._versioned(getattr(_bindings, name))()).hex()
        self.assertIn("seqparAttnDesc_t", expected)
        ours = compiled(statements)
        for name, text in expected.items():
            if name != "seqparGrid_t":  # its initializer has arrays, which the package does not initialize
                self.assertEqual(ours[name], text, name)

    def test_all_functions_are_in_the_libraries(self):
        for name in _bindings.PROTOTYPES:
            library = _abi.attn_lib() if _abi._is_attn(name) else _abi.lib
            self.assertTrue(hasattr(library, name), name)

    def test_attention_algorithms_have_the_librarys_names(self):
        for name, number in _abi.ATTN_ALGORITHMS.items():
            text = _abi.attn_lib().seqparAttnAlgorithmName(number)
            if text is not None:  # an algorithm of this version
                self.assertEqual(name, text.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
