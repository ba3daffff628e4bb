"""Prints the tables of README.md and docs/performance.md from the lines that run.py saved.

usage: tables.py peers.jsonl

A figure is the median over the rounds; "-" where there is none. `N failed` means that an allocator refused N requests.
"""

import json
import statistics
import sys

# The name in the lines, and the title in the tables.
ALLOCATORS = {
    "forebay": "forebay",
    "pytorch": "PyTorch",
    "pytorch-expandable": "PyTorch, expandable segments",
    "cudaMallocAsync": "cudaMallocAsync",
    "cudaMalloc": "cudaMalloc",
}
# cudaMalloc keeps nothing, so it has one pass: its figures are in the first pass's table.
KEEPING = [name for name in ALLOCATORS if name != "cudaMalloc"]
RUNS = {
    "gpt2_train": "training GPT-2 124M",
    "llama_varlen_train": "training a Llama, sequences of many lengths",
    "llm_generate": "generating tokens",
    "resnet_multiscale": "training ResNet, images of many sizes",
    "serving_threads": "serving on five streams",
}
WORKLOADS = {
    "pair 512 B": "hot pair, 512 B",
    "pair 1 MiB": "hot pair, 1 MiB",
    "pair 256 MiB": "hot pair, 256 MiB",
    "hold 1000": "1,000 blocks of 64 KiB, held and freed",
    "random sizes": "random sizes from 256 B to 8 MiB, 512 live",
    "16 threads": "hot pairs on 16 threads, each with its own stream",
}


def show(lines):
    """All tables, as Markdown."""
    machine = lines[0]
    rounds = sorted({line["round"] for line in lines if "round" in line})
    figures = {}
    for line in lines:
        if "workload" in line:
            case = (line["run"], line["pass"]) if line["workload"] == "replay" else (line["workload"], None)
            figures.setdefault((*case, line["allocator"]), {})[line["round"]] = line
    print(
        f"One {machine['gpu']}, driver {machine['driver']}, CUDA {machine['cuda']}, PyTorch {machine['pytorch']}, "
        f"{machine['processors']} processors, {machine['date']}, commit {machine['commit']}; medians of {len(rounds)} round{'s' * (len(rounds) != 1)}."
    )
    # Recordings of one's own follow the repository's.
    runs = {**RUNS, **{line["run"]: line["run"] for line in lines if line.get("run", "") not in (*RUNS, "")}}

    def table(title, first, columns, rows):
        if all(cell == "-" for _, *cells in rows for cell in cells):
            return
        head = " | ".join([first, *columns]).strip()
        print(f"\n{title}\n\n| {head} |\n|{'---|' * (1 + len(columns))}")
        for row in rows:
            print(f"| {' | '.join(row)} |")

    def cells(names, show_one, key):
        return [show_one(figures.get((*key, name), {})) for name in names]

    names = [ALLOCATORS[name] for name in KEEPING]
    table(
        "Recorded runs, second pass: ratio; ns per operation (the table of README.md):",
        "",
        names,
        [[title, *cells(KEEPING, ratio_and_mean, (run, 2))] for run, title in runs.items()],
    )
    table(
        "PyTorch's time over forebay's, round by round:",
        "",
        ["second pass"],
        [[title, quotients(figures, (run, 2), rounds)] for run, title in runs.items()],
    )
    table(
        "First pass: ratio; ns per operation:",
        "recorded run",
        list(ALLOCATORS.values()),
        [[title, *cells(ALLOCATORS, ratio_and_mean, (run, 1))] for run, title in runs.items()],
    )
    tails = [(name, number) for number in (1, 2) for name in ("forebay", "pytorch-expandable")]
    table(
        "Slowest call in ms; 99.9th percentile in us:",
        "recorded run",
        [f"{ALLOCATORS[name]}, {'first' if number == 1 else 'second'} pass" for name, number in tails],
        [
            [title, *(tail(figures.get((run, number, name), {})) for name, number in tails)]
            for run, title in runs.items()
        ],
    )
    table(
        "Small workloads:",
        "ns per operation",
        [*names, "PyTorch over forebay"],
        [
            [title, *cells(KEEPING, mean, (case, None)), quotients(figures, (case, None), rounds)]
            for case, title in WORKLOADS.items()
        ],
    )


def median(lines, key):
    return statistics.median(line[key] for line in lines.values())


def ratio_and_mean(lines):
    if not lines:
        return "-"
    failures = max(line["failures"] for line in lines.values())
    if failures:
        return f"{failures} failed"
    return f"{median(lines, 'ratio'):.3f}; {median(lines, 'mean_ns'):,.0f} ns"


def mean(lines):
    return f"{median(lines, 'mean_ns'):,.0f}" if lines else "-"


def tail(lines):
    return f"{median(lines, 'max_ns') / 1e6:.2f}; {median(lines, 'p999_ns') / 1e3:.1f}" if lines else "-"


def quotients(figures, key, rounds):
    """PyTorch's time over forebay's in each round: the clock of a processor differs between rounds."""
    ours, theirs = (figures.get((*key, name), {}) for name in ("forebay", "pytorch"))
    both = [number for number in rounds if number in ours and number in theirs]
    found = [theirs[number]["mean_ns"] / ours[number]["mean_ns"] for number in both]
    return ", ".join(f"{one:.0f}" if one >= 100 else f"{one:.1f}" for one in found) or "-"


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    show(read(sys.argv[1]))
