"""Tests of the Python package against the built library (SEQPAR_LIBRARY) and the headers (SEQPAR_HEADERS, a folder)."""

import datetime
import os
import pathlib
import pickle
import re
import socket
import subprocess
import sys
import threading
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no numpy:", sys.executable)
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import import_graph
import seqpar
import stub_file
from seqpar import _abi

TIMEOUT = 600  # seconds; only a hang takes so long, also on a busy machine


def run_ranks(comms, work):
    """Runs work(comm, rank) for every communicator on a separate thread; raises the exception of one of them."""
    errors = []

    def run(comm, rank):
        try:
            with comm:
                work(comm, rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(comm, rank), daemon=True) for rank, comm in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        if thread.is_alive():
            raise TimeoutError(f"a rank did not end within {TIMEOUT} s")
    if errors:
        raise errors[0]


def reference(states, transitions, op, initial):
    """prefix and total of every position, in float64."""
    x, result = initial.astype(np.float64), []
    for state, transition in zip(states, transitions):
        if op == "matrix":
            moved = transition.astype(np.float64) @ x
        else:
            shape = {"sum": (), "scalar": (-1, 1, 1), "diag": transition.shape + (1,) if op == "diag" else ()}[op]
            moved = x if op == "sum" else x * transition.astype(np.float64).reshape(shape)
        result.append((x, moved + state))
        x = moved + state
    return result


def header(*names):
    return "".join((pathlib.Path(os.environ["SEQPAR_HEADERS"]) / name).read_text() for name in names)


class Imports(unittest.TestCase):
    def test_no_module_imports_itself_through_others(self):
        self.assertEqual(import_graph.cycles(pathlib.Path(__file__).resolve().parents[1], "seqpar"), [])


class Types(unittest.TestCase):
    def test_stub_matches_the_module(self):
        stub = stub_file.read(pathlib.Path(seqpar.__file__).with_suffix(".pyi"))
        stub_file.compare(stub, seqpar, {})


class Endings(unittest.TestCase):
    def test_exception_ends_the_waits_of_other_ranks_with_its_text(self):
        texts = []

        def work(comm, rank):
            if rank == 1:
                raise KeyError("no such document")
            try:
                comm.send_recv(receive=np.zeros(1), source=1)
            except seqpar.Error as error:
                texts.append((error.result, str(error)))

        with self.assertRaises(KeyError):
            run_ranks(seqpar.Communicator.init_all(2), work)
        self.assertEqual(texts[0][0], "RemoteError")
        self.assertIn("rank 1 ended the communicator: KeyError: 'no such document'", texts[0][1])


class Header(unittest.TestCase):
    def test_constants_agree_with_the_headers(self):
        text = header("types.h", "scan.h", "seqpar.h")

        def number(name):
            match = re.search(rf"\bseqpar{name}\s*=\s*(\d+)", text)
            self.assertIsNotNone(match, f"seqpar{name} is not in the headers")
            return int(match.group(1))

        for name, value in _abi.RESULTS.items():
            self.assertEqual(number(name), value, name)
        for prefix, choices in (("Transport", _abi.TRANSPORTS), ("", _abi.TYPES), ("Scan", _abi.OPS),
                                ("Decay", _abi.DECAYS), ("Scan", _abi.ALGORITHMS)):
            for name, value in choices.items():
                self.assertEqual(number(prefix + name.capitalize()), value, prefix + name)

    def test_versions_agree(self):
        text = header("types.h")
        built = ".".join(re.search(rf"SEQPAR_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))
        self.assertEqual(seqpar.version(), built)


class Collectives(unittest.TestCase):
    def test_all_scan_agrees_with_a_loop(self):
        seed = int.from_bytes(os.urandom(4), "little")
        random = np.random.default_rng(seed)
        heads, dk, dv = 3, 4, 5
        shapes = {"sum": None, "scalar": (heads,), "diag": (heads, dk), "matrix": (heads, dk, dk)}
        for nranks in (1, 3):
            for op, shape in shapes.items():
                for reverse in (False, True) if op != "matrix" else (False,):
                    states = random.integers(-4, 5, (nranks, heads, dk, dv)).astype(np.float32)
                    factors = [None] * nranks if shape is None else random.integers(0, 3, (nranks, *shape)).astype(np.float32)
                    initial = random.integers(-4, 5, (heads, dk, dv)).astype(np.float32)
                    order = range(nranks)[::-1] if reverse else range(nranks)
                    expected = reference([states[r] for r in order],
                                         [np.ones(()) if shape is None else factors[r] for r in order], op, initial)

                    def work(comm, rank):
                        prefix, total = comm.all_scan(states[rank], factors[rank], op=op, initial=initial, reverse=reverse)
                        position = list(order).index(rank)
                        np.testing.assert_array_equal(prefix, expected[position][0])
                        np.testing.assert_array_equal(total, expected[position][1])

                    with self.subTest(op=op, nranks=nranks, reverse=reverse, seed=seed):
                        run_ranks(seqpar.Communicator.init_all(nranks), work)

    def test_bfloat16_is_sent_as_uint16(self):
        one = np.array([1.0], np.float32).view(np.uint32) >> 16

        def work(comm, rank):
            state = np.full((1, 2, 2), one, np.uint16)
            _, total = comm.all_scan(state, op="sum", prefix=False)
            np.testing.assert_array_equal((total.astype(np.uint32) << 16).view(np.float32), rank + 1.0)

        run_ranks(seqpar.Communicator.init_all(2), work)

    def test_send_recv_around_a_ring(self):
        def work(comm, rank):
            got = np.zeros(7, np.int64)
            comm.send_recv(np.full(7, rank), (rank + 1) % comm.size, got, (rank - 1) % comm.size)
            np.testing.assert_array_equal(got, (rank - 1) % 3)

        run_ranks(seqpar.Communicator.init_all(3), work)

    def test_unique_id_query_and_split(self):
        token = seqpar.unique_id()

        def work(rank):
            with seqpar.Communicator(2, token, rank, timeout=TIMEOUT) as comm:
                info = comm.query()
                self.assertEqual((info["rank"], info["nranks"], comm.rank, comm.size), (rank, 2, rank, 2))
                self.assertTrue(info["transport"])
                part = comm.split(0 if rank == 0 else None)
                if rank == 0:
                    with part:
                        self.assertEqual(part.size, 1)
                else:
                    self.assertIsNone(part)

        class Late:
            def __enter__(self):
                return self

            def __exit__(self, *ignored):
                return None

        run_ranks([Late(), Late()], lambda comm, rank: work(rank))

    def test_missing_library_error_names_the_remedy(self):
        done = subprocess.run([sys.executable, "-c", "import seqpar"], capture_output=True, text=True,
                              env={**os.environ, "SEQPAR_LIBRARY": "/nowhere/libseqpar.so",
                                   "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1])})
        self.assertIn("ImportError: seqpar: /nowhere/libseqpar.so", done.stderr)
        self.assertIn("SEQPAR_LIBRARY names another file", done.stderr)

    def test_from_env_as_two_processes(self):
        # Bound without listening while this runs, so that no other program gets the port before rank 0 does.
        held = socket.socket()
        self.addCleanup(held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        program = ("import numpy as np, seqpar\n"
                   "with seqpar.Communicator.from_env(timeout=600) as comm:\n"
                   "    _, total = comm.all_scan(np.ones((1, 2, 2), np.float32), op='sum')\n"
                   "    assert (total == comm.rank + 1).all(), total\n")
        common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                  "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1])}
        ranks = [subprocess.Popen([sys.executable, "-c", program], env={**common, "RANK": str(rank)},
                                  stderr=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            for rank in ranks:
                _, errors = rank.communicate(timeout=2 * TIMEOUT)
                self.assertEqual(rank.returncode, 0, errors)
        finally:
            for rank in ranks:
                rank.kill()


class Errors(unittest.TestCase):
    def test_library_error_text_is_raised(self):
        with self.assertRaises(seqpar.Error) as caught:
            seqpar.Communicator.init_all(0)
        self.assertEqual(caught.exception.result, "InvalidArgument")
        self.assertIn("nranks", str(caught.exception))
        sent = pickle.loads(pickle.dumps(caught.exception))  # as pools of processes send it
        self.assertEqual((type(sent), sent.result, str(sent)), (seqpar.Error, "InvalidArgument", str(caught.exception)))

    def test_wrong_timeouts_are_refused(self):
        for timeout, error in (("5", TypeError), (-1, ValueError), (2 ** 32 / 1000, ValueError)):
            with self.subTest(timeout=timeout), self.assertRaisesRegex(error, "timeout: got"):
                seqpar.Communicator(1, seqpar.unique_id(), 0, timeout=timeout)
        with seqpar.Communicator(1, seqpar.unique_id(), 0, timeout=datetime.timedelta(seconds=5)) as comm:
            self.assertEqual(comm.rank, 0)

    def test_wrong_arrays_are_refused(self):
        state = np.ones((2, 3, 4), np.float32)
        with seqpar.Communicator.init_all(1)[0] as comm:
            for error, arguments in (
                    (TypeError, dict(state=state.astype(np.float64), op="sum")),
                    (TypeError, dict(state=state.tolist(), op="sum")),
                    (ValueError, dict(state=state[:, ::2], op="sum")),
                    (ValueError, dict(state=state, op="mean")),
                    (ValueError, dict(state=state)),
                    (ValueError, dict(state=state, transition=np.ones((2, 4), np.float32))),
                    (TypeError, dict(state=state, transition=np.ones((2, 3)))),
                    (seqpar.Error, dict(state=state, op="sum", blocks=-1)),
                    (seqpar.Error, dict(state=state, op="sum", prefix=False, total=False))):
                with self.subTest(**arguments), self.assertRaises(error):
                    comm.all_scan(**arguments)


if __name__ == "__main__":
    unittest.main(verbosity=2)
