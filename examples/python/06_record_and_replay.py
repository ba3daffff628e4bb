"""What a run would take under other allocators: recorded here, played on a simulated GPU."""

import os
import tempfile

import forebay

path = os.path.join(tempfile.mkdtemp(), "run.fbt")
with forebay.Pool("host", record=True) as pool:
    layers = [pool.allocate(1000 * (index + 1) * 300) for index in range(20)]
    for _ in range(10):
        step = [pool.allocate(200_000 + 70_000 * (index % 7)) for index in range(30)]
        del step
    events = pool.save_trace(path)
print(events, "events")

for row in forebay.replay(path, device="sim"):
    if row["pass"] == 2:
        print(f"{row['policy']:>16}: {row['peak_reserved_bytes'] / 2**20:6.1f} MiB held for "
              f"{row['peak_requested_bytes'] / 2**20:.1f} asked for, {row['driver_calls']} calls of the driver")
