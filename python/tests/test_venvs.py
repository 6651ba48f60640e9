"""Tests of venvs.answer: the error of a helper process that died."""

import sys
import unittest

import venvs


def process(code):
    return venvs.start(sys.executable, "-c", f"import os, signal, sys\n{code}")


class Answer(unittest.TestCase):
    def dies(self, helper, text):
        with self.assertRaises(RuntimeError) as raised:
            venvs.answer(helper, {"job": 1})
        self.assertIn(f"process {helper.pid} (", str(raised.exception))
        self.assertIn(f"{text} before it answered {{\"job\": 1}}", str(raised.exception))

    def test_answer(self):
        self.assertEqual(venvs.answer(process("sys.stdin.readline(); print([0, 3], flush=True)"), {"job": 1}), [0, 3])

    def test_exit_status(self):
        self.dies(process("sys.stdin.readline(); sys.exit(3)"), "ended with exit status 3")

    def test_signal(self):
        self.dies(process("sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"), "was killed by SIGKILL")

    def test_death_within_an_answer(self):
        self.dies(process("sys.stdin.readline(); print('[0,', end='', flush=True); os._exit(0)"), "ended with exit status 0")

    def test_death_before_the_job(self):
        helper = process("sys.exit(1)")
        helper.wait()
        self.dies(helper, "ended with exit status 1")


if __name__ == "__main__":
    unittest.main()
