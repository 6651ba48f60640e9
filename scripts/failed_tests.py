#!/usr/bin/env python3
"""Prints the last lines that each failed test of a ctest run has written, from its JUnit file.

    scripts/failed_tests.py PHASE FILE [LINES]
"""

import sys
import xml.etree.ElementTree


def main(phase, path, lines="40"):
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        if case.get("status") != "fail":
            continue
        output = (case.findtext("system-out") or "").rstrip().splitlines()
        print(f"---- {phase}: {case.get('name')}, {float(case.get('time')):.0f} s, its last lines:")
        print("\n".join(line[:300] for line in output[-int(lines):]))


if __name__ == "__main__":
    main(*sys.argv[1:])
