#!/usr/bin/env python3
"""check_plot.py PROGRAM FILE.svg: seqpar_sim draws one curve per algorithm, also with a failed network adapter."""
import subprocess
import sys
import xml.etree.ElementTree

program, path = sys.argv[1:]
subprocess.run([program, "--nodes", "1,2", "--tokens", "16K", "--algo", "zigzag,usp", "--what-if", "rank[3].net=down",
                "--plot", path], check=True)
curves = xml.etree.ElementTree.parse(path).getroot().findall("{http://www.w3.org/2000/svg}polyline")
if len(curves) != 2:
    sys.exit(f"{path} has {len(curves)} curves, expected 2")
