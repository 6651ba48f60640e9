#!/usr/bin/env python3
"""Checks a JSON file of a perf binary: results that are right, and all that nccl-tests' analyze_perf_json.py reads.

usage: check_json.py FILE
"""
import json
import math
import sys

STATISTICS = ("min_us", "avg_us", "p50_us", "p95_us", "p99_us", "max_us")


def check_iterations(each, config):
    """One of the objects ..._per_iter, which -I adds."""
    times, skipped = each["times_us"], each["skipped_iterations"]
    assert skipped == config["per_iter_skip"] and len(times) > skipped, each
    values = [each[name] for name in STATISTICS]
    assert all(isinstance(value, float) and value > 0 for value in values), each
    assert each["min_us"] <= each["p50_us"] <= each["p95_us"] <= each["p99_us"] <= each["max_us"], each
    assert each["min_us"] <= each["avg_us"] <= each["max_us"] <= max(times), each
    assert math.isclose(each["cv_pct"], 100 * each["stdev_us"] / each["avg_us"], rel_tol=1e-6), each
    rows = each.get("per_process_max_times_us", [])
    assert len(rows) != 1 and len(rows) <= len(config["devices"]), rows
    if rows:
        assert [max(column) for column in zip(*rows, strict=True)] == times, "times_us is not the most of the rows"


def check(data):
    config = data["config"]
    assert data["version"] == 3 and data["results"], "no results of version 3"
    for name in ("start_time", "end_time", "args", "env", "nccl_version", "errors", "seqpar"):
        assert name in data, name
    assert not any("TOKEN" in entry for entry in data["env"]), "a secret"
    for name in ("nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "warmup_iters", "iterations",
                 "aggregated_iterations", "validation", "graph"):
        assert isinstance(config[name], int), name
    assert ("step_factor" in config) != ("step_bytes" in config)
    for rank, device in enumerate(config["devices"]):
        assert device["rank"] == rank and device["hostname"] and device["device_info"], device
    assert data["out_of_bounds"] == {"count": 0, "okay": "true"}, "results were not all right"
    moves = any(result["size"] > 0 for result in data["results"])
    assert (data["average_bus_bandwidth"]["bandwidth"] > 0) == moves
    for result in data["results"]:
        assert result["size"] > 0 or config["minimum_bytes"] == 0, result
        assert result["type"] and result["redop"] and result["root"], result
        out = result["out_of_place"]
        assert out.get("time", out.get("cpu_time")) > 0, result
        assert (out["alg_bw"] > 0) == (out["bus_bw"] > 0) == (result["size"] > 0), result
        if result["seqpar"]["computed"]:
            continue
        assert result["actual_iterations"] > 0, result
        if config["validation"]:
            assert out["nwrong"] == 0, result
        if config["per_iter_timing"] == "true":
            check_iterations(result["out_of_place_per_iter"], config)


with open(sys.argv[1], encoding="utf-8") as file:
    check(json.load(file))
