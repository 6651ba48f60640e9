#!/usr/bin/env python3
"""operands_in_flight.py CUOBJDUMP LIBRARY: no kernel writes registers that products in flight read.

wgmma reads operand A from registers after the instruction was issued. If the registers are a variable that the source
assigns again before the wait, results are wrong on a GPU, but not on the emulator. Reads SASS (sm_90a) from the first
instruction to the last one, without branches. Skipped (77) without cuobjdump.
"""

import re
import subprocess
import sys

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)\s*([^;]*);")
NO_DESTINATION = ("ST", "SYNCS", "RED", "BAR", "BRA", "WARPSYNC", "UTMA", "R2UR", "R2P")
BROKEN = """
        /*0010*/   HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0 ;
        /*0020*/   LDSM.16.M88.4 R4, [R9] ;
        /*0030*/   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
"""


def width(name):
    """Registers that an instruction writes."""
    if name.endswith(".128") or (name.startswith("LDSM") and name.endswith(".4")):
        return 4
    return 2 if name.endswith(".64") or ".WIDE" in name else 1


def writes(kernel):
    """The instructions of a kernel's SASS that write operands of products before their wait."""
    committed, started = [], set()  # registers of each group of products in flight, and of products without one yet
    for line in kernel.splitlines():
        match = INSTRUCTION.match(line)
        if not match:
            continue
        name, arguments = match.groups()
        if name.startswith("HGMMA"):
            operand = re.match(r"R\d+, R(\d+)", arguments)
            if operand:
                started.update(range(int(operand[1]), int(operand[1]) + 4))
            if "gsb0" in arguments:
                committed, started = [*committed, started], set()
        elif name.startswith("WARPGROUP.DEPBAR"):
            left = int(re.search(r"gsb0, 0x(\w+)", arguments)[1], 16)
            committed = committed[len(committed) - left:] if left else []
            started = started if left else set()
        elif not name.startswith(NO_DESTINATION):
            target = re.match(r"R(\d+)\b", arguments)
            written = range(int(target[1]), int(target[1]) + width(name)) if target else ()
            if any(register in group for register in written for group in (started, *committed)):
                yield line.strip()


def main(cuobjdump, library):
    assert len(list(writes(BROKEN))) == 1, "the defect of BROKEN was not found"
    if not cuobjdump:
        print("skipped: no cuobjdump")
        return 77
    sass = subprocess.run([cuobjdump, "-sass", library], check=True, capture_output=True, text=True).stdout
    kernels = [kernel for kernel in re.split(r"\n\s*Function : ", sass)[1:] if "HGMMA" in kernel]
    if not kernels:
        print("skipped: no kernel with wgmma: the library has no sm_90a code")
        return 77
    wrong = {kernel.split("\n", 1)[0]: list(writes(kernel)) for kernel in kernels}
    for name, lines in wrong.items():
        if lines:
            print(f"{name}: {len(lines)} writes to operands of products in flight, the first: {lines[0]}")
    print(f"{len(kernels)} kernels with wgmma")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
