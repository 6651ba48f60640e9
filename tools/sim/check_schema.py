#!/usr/bin/env python3
"""Checks the machine files against machine.schema.json; exits with 77 without the package jsonschema."""
import json
import pathlib
import sys

try:
    import jsonschema
except ImportError:
    sys.exit(77)

HERE = pathlib.Path(__file__).parent
schema = json.loads((HERE / "machine.schema.json").read_text())
for path in sorted((HERE / "machines").glob("*.json")):
    machine = json.loads(path.read_text())
    jsonschema.validate(machine, schema)
    for part in {"node", "gpu", "scan", "host"} & set(machine):  # the schema can fail
        broken = {**machine, part: {**machine[part], "speed": {"value": 1, "source": "guess"}}}
        try:
            jsonschema.validate(broken, schema)
        except jsonschema.ValidationError:
            continue
        sys.exit(f"{path}: the schema accepts the unknown key {part}.speed")
    print(path.name)
