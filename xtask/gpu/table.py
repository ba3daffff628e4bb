"""What came of a run of the bundle: a record in JSON, and a short table for people.

usage: table.py OUT COMMIT

Reads what run.sh left in OUT (parts.tsv and a text for each part), writes OUT/record.json (schema
forebay.record.v1) and prints the table. Exits with 1 where a part failed.
"""

import datetime
import json
import os
import platform
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import tables  # of benches/peers, which the bundle has in peers

SCHEMA = "forebay.record.v1"

COUNTS = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
SANITIZER = re.compile(r"ERROR SUMMARY: (\d+) error")


def text(out, part):
    try:
        with open(os.path.join(out, part + ".txt"), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def gpu():
    """The name of the GPU, the version of its driver and its memory: by nvidia-smi, or by forebay."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", "-i", "0"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=30).stdout
        name, driver, memory = (word.strip() for word in said.strip().split(","))
        return name, driver, memory
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return gpu_by_doctor()


def gpu_by_doctor():
    try:
        ask = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "forebay"), "doctor", "--json"]
        report = json.loads(subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout)
        row = next(row for row in report["devices"] if row["kind"] == "cuda" and row["status"] == "ready")
        words = re.match(r"cuda:\d+ (.+), CUDA [\d.]+(?:, driver ([\d.]+))?$", row["summary"])
        return words.group(1), words.group(2) or "unknown", f"{row['total_bytes'] >> 20} MiB"
    except (OSError, ValueError, AttributeError, StopIteration, subprocess.TimeoutExpired):
        return "unknown", "unknown", "unknown"


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.machine()


def parts(out):
    rows = []
    with open(os.path.join(out, "parts.tsv")) as file:
        for line in file:
            name, status, seconds, command = line.rstrip("\n").split("\t")
            row = {"row": "part", "part": name, "status": status, "seconds": float(seconds), "command": command}
            said = text(out, name)
            counts = COUNTS.search(said)
            if counts:
                passed, failed, ignored = (int(count) for count in counts.groups())
                row.update(passed=passed, failed=failed, ignored=ignored)
            found = SANITIZER.search(said)
            if found:
                row["sanitizer_errors"] = int(found.group(1))
            elif name.startswith("memcheck-") and status == "passed":
                # Without its last word nobody knows what it looked at.
                row["status"] = "failed (no summary of the sanitizer)"
            # A test program that tested nothing has shown nothing.
            if counts and status == "passed" and passed == 0:
                row["status"] = "skipped: no case could run"
            rows.append(row)
    return rows


def figures(out, names):
    """What the tests measured, what forebay's own command did, and how other allocators compare."""
    rows = []
    for part in names:
        for line in text(out, part).splitlines():
            if "record: {" in line:
                rows.append({"row": "figure", "part": part, **json.loads(line[line.index("{") :])})
            elif part in ("bench", "replay") and line.startswith("{"):
                rows.append({"row": part, **json.loads(line)})
            elif part.startswith("verify-") and line.startswith("{"):
                rows.append({"row": "verify", **json.loads(line)})
            elif part.startswith(("torch", "python", "pair")) and line.startswith("{"):
                rows.append({"row": "check", "part": part, **json.loads(line)})
    path = os.path.join(out, "peers.jsonl")
    if "peers" in names and os.path.exists(path):
        rows += [{"row": "peers", **line} for line in tables.read(path)]
    return rows


def number(value, form):
    return format(value, form) if value is not None else "-"


def show_workloads(rows):
    """The named workloads, by forebay's own benchmark: every allocator in one table."""
    table, names = {}, []
    for row in rows:
        if row["row"] == "bench" and row["threads"] and not row["bench"].startswith(("HO", "OBJ-POOL")):
            table.setdefault((row["bench"], row["case"]), {})[row["allocator"]] = row.get("ns_per_op")
            if row["allocator"] not in names:
                names.append(row["allocator"])
    if not table:
        return
    print("\nns an operation, named workloads   " + "".join(f"{name:>17}" for name in names))
    for (bench, case), values in table.items():
        print(f"  {bench:15}{case[:20]:20}" + "".join(f"{number(values.get(name), '.1f'):>15}  " for name in names))
    print(
        "  Each round is on a fresh pool and a fresh device; allocators of others are the process's own, and from\n"
        "  the second round on they have what the first one got: rows in which memory is taken are not like for like."
    )


def show_checks(rows):
    """Training, and the pair through C."""
    for row in rows:
        if row.get("schema") == "forebay.train_compare.v1":
            print(f"\n{'training':20} median step ms   ratio   peak by the driver   losses   tokens")
            for mode, one in row["modes"].items():
                same = ["the same" if one[key] else "differ" for key in ("losses_equal", "tokens_equal")]
                print(
                    f"  {mode:18} {one['median_step_ms']:14.2f} {one['step_ratio']:7.3f} {one['driver_ratio']:20.3f}"
                    f"   {same[0]} {same[1]}"
                )
        elif row.get("schema") == "forebay.pair_check.v1" and "ratio_to_rust" in row:
            said = ", ".join(f"{size} B {ratio}x" for size, ratio in row["ratio_to_rust"].items())
            print(f"\na pair through forebay_torch_allocate, to the Rust one: {said}")


def show_figures(rows):
    for row in rows:
        if row["row"] == "figure":
            said = [f"{key} {value}" for key, value in row.items() if key not in ("row", "part", "case")]
            print(f"  {row['case']}: {', '.join(said)}")


def main():
    out, commit = sys.argv[1], sys.argv[2].strip()
    name, driver, memory = gpu()
    rows = parts(out)
    measured = figures(out, [row["part"] for row in rows])
    record = {
        "schema": SCHEMA,
        "gpu": name,
        "driver": driver,
        "memory": memory,
        "processor": processor(),
        "processors": os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit,
        "rows": rows + measured,
    }
    with open(os.path.join(out, "record.json"), "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    print(f"\n{name}, {memory}, driver {driver}; forebay {commit}; {record['date']}")
    show_figures(measured)
    show_workloads(measured)
    compared = [row for row in measured if row["row"] == "peers"]
    if compared:
        print()
        tables.show(compared)
    show_checks(measured)
    print("\npart                    seconds  outcome")
    for row in rows:
        counts = ""
        if "passed" in row:
            counts = f"  {row['passed']} passed, {row['failed']} failed, {row['ignored']} skipped"
        if "sanitizer_errors" in row:
            counts += f"  sanitizer: {row['sanitizer_errors']} errors"
        print(f"  {row['part']:20} {row['seconds']:8.1f}  {row['status']}{counts}")
    return 1 if any(row["status"].startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
