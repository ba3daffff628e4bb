//! `/metrics`: a sample as text for Prometheus, in its own format or as OpenMetrics.
//!
//! Names follow its conventions: base units (bytes, seconds), `_total` for counters, one family after another. Each
//! pool, engine and buffer manager has a number that is unique in its process, so a counter never goes back.

use std::fmt::{Display, Write};

use forebay::monitor::{DirectionTotals, ProcessPool};

use super::nvml::Gpu;
use super::sample::{Process, Sample};

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The one that a request's `Accept` header asks for.
    pub(super) fn accepted(header: &str) -> Self {
        let open = header.contains("application/openmetrics-text");
        if open { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

use Kind::{Counter, Gauge};

type PoolFamily = (&'static str, Kind, &'static str, fn(&ProcessPool) -> u64);

/// The values reported for every pool.
const POOLS: [PoolFamily; 15] = [
    ("limit_bytes", Gauge, "The most the pool may hold.", |of| of.limit_bytes),
    ("live_bytes", Gauge, "Bytes in live blocks, after rounding up.", |of| of.live_bytes),
    ("requested_bytes", Gauge, "Bytes requested for live blocks.", |of| of.requested_bytes),
    ("cached_bytes", Gauge, "Bytes in free blocks that threads cache.", |of| of.cached_bytes),
    ("held_bytes", Gauge, "Bytes the pool holds from the device.", |of| of.held_bytes),
    ("held_peak_bytes", Gauge, "The peak of bytes held.", |of| of.peak_held_bytes),
    ("largest_free_bytes", Gauge, "The largest hole.", |of| of.largest_free_bytes),
    ("blocks", Gauge, "Live blocks.", |of| of.blocks),
    ("holes", Gauge, "Pieces of free memory.", |of| of.holes),
    ("pressure_level", Gauge, "From 0 for low to 4 for critical.", |of| {
        let levels = ["low", "normal", "moderate", "high", "critical"];
        levels.iter().position(|level| *level == of.pressure).unwrap_or(1) as u64
    }),
    ("allocations", Counter, "Blocks allocated.", |of| of.allocations),
    ("frees", Counter, "Blocks freed.", |of| of.frees),
    ("cache_hits", Counter, "Allocations from a thread cache.", |of| of.magazine_hits),
    ("misses", Counter, "Allocations that needed memory from the driver.", |of| of.misses),
    ("stream_waits", Counter, "Times a stream was made to wait for another.", |of| of.waits),
];

/// The text.
pub(super) fn write(sample: &Sample, format: Format) -> String {
    let mut page = Page { format, text: String::new() };
    let processes = &sample.processes;
    let up = processes.iter().map(|process| (of_process(process), 1));
    let down = sample.unreadable.iter().map(|one| {
        let (pid, copy) = (one.pid.to_string(), one.copy.to_string());
        (labels(of_copy(&[("pid", &pid), ("copy", &copy)])), 0)
    });
    let help = "Whether the process could be read.";
    page.family("forebay_process_up", Gauge, help, up.chain(down));
    for (name, kind, help, figure) in POOLS {
        let values = pools(processes).map(|(labels, pool)| (labels, figure(pool)));
        page.family(&format!("forebay_pool_{name}"), kind, help, values);
    }
    latencies(&mut page, processes);
    owners(&mut page, processes);
    engines(&mut page, processes);
    buffers(&mut page, processes);
    gpus(&mut page, sample);
    if format == Format::OpenMetrics {
        page.text.push_str("# EOF\n");
    }
    page.text
}

fn latencies(page: &mut Page, processes: &[Process]) {
    let name = "forebay_pool_driver_call_duration_seconds";
    page.header(name, "histogram", "How long calls of the driver took.");
    for (labels, pool) in pools(processes) {
        let mut sum = 0;
        for bucket in &pool.driver_latency {
            sum = bucket.count.saturating_add(sum);
            let bound = match bucket.at_most_ns {
                u64::MAX => "+Inf".to_owned(),
                bound => seconds(bound),
            };
            page.value(&format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), sum);
        }
        page.value(&format!("{name}_sum"), &labels, seconds(pool.driver_ns));
        page.value(&format!("{name}_count"), &labels, sum);
    }
}

fn owners(page: &mut Page, processes: &[Process]) {
    let tags = pools(processes).flat_map(|(of_pool, pool)| {
        let labelled = move |tag: &str| format!("{of_pool},{}", labels(&[("tag", tag)]));
        pool.tags.iter().map(move |of| (labelled(&of.tag), of.live_bytes))
    });
    let help = "Bytes in live blocks of the tags that have most.";
    page.family("forebay_tag_live_bytes", Gauge, help, tags);
    let streams = pools(processes).flat_map(|(of_pool, pool)| {
        let labelled = move |stream: u64| format!("{of_pool},stream=\"{stream:#x}\"");
        pool.streams.iter().map(move |of| (labelled(of.stream), of.allocations))
    });
    let help = "Blocks allocated on the streams that have most.";
    page.family("forebay_stream_allocations", Counter, help, streams);
}

type DirectionFamily = (&'static str, &'static str, fn(&DirectionTotals) -> String);

fn engines(page: &mut Page, processes: &[Process]) {
    const FAMILIES: [DirectionFamily; 4] = [
        ("forebay_transfers", "Transfers that are done.", |of| of.transfers.to_string()),
        ("forebay_transfer_failures", "Transfers that failed or were cancelled.", |of| {
            of.failures.to_string()
        }),
        ("forebay_transfer_bytes", "Bytes that transfers copied.", |of| of.bytes.to_string()),
        ("forebay_transfer_busy_seconds", "Time with a transfer under way.", |of| {
            seconds(of.busy_ns)
        }),
    ];
    let each = || {
        processes.iter().flat_map(|process| {
            process.snapshot.engines.iter().map(|engine| {
                let device = format!("{}:{}", engine.kind, engine.ordinal);
                let own = labels(&[("engine", &engine.engine.to_string()), ("device", &device)]);
                (format!("{},{own}", of_process(process)), engine)
            })
        })
    };
    for (name, help, figure) in FAMILIES {
        let values = each().flat_map(|(labels, engine)| {
            let both = [("to_device", &engine.uploads), ("to_host", &engine.downloads)];
            both.map(|(to, of)| (format!("{labels},direction=\"{to}\""), figure(of)))
        });
        page.family(name, Counter, help, values);
    }
    let pinned = each().map(|(labels, engine)| (labels, engine.pinned_bytes));
    let help = "Pinned memory of transfer engines.";
    page.family("forebay_transfer_pinned_bytes", Gauge, help, pinned);
}

fn buffers(page: &mut Page, processes: &[Process]) {
    let each = || {
        processes.iter().flat_map(|process| {
            process.snapshot.buffers.iter().map(|manager| {
                (format!("{},manager=\"{}\"", of_process(process), manager.manager), manager)
            })
        })
    };
    let live = each().map(|(labels, of)| (labels, of.buffers));
    page.family("forebay_buffers", Gauge, "Live buffers.", live);
    let bytes = each().flat_map(|(labels, of)| {
        let sides =
            [("host", of.host_bytes), ("device", of.device_bytes), ("shared", of.shared_bytes)];
        sides.map(|(side, bytes)| (format!("{labels},side=\"{side}\""), bytes))
    });
    let help = "Memory of live buffers, by where it is.";
    page.family("forebay_buffer_bytes", Gauge, help, bytes);
    let copied = each().flat_map(|(labels, of)| {
        let both = [("to_device", of.to_device.bytes), ("to_host", of.to_host.bytes)];
        both.map(|(to, bytes)| (format!("{labels},direction=\"{to}\""), bytes))
    });
    let help = "Bytes that buffers copied.";
    page.family("forebay_buffer_copied_bytes", Counter, help, copied);
}

type GpuFamily = (&'static str, &'static str, fn(&Gpu) -> Option<String>);

fn gpus(page: &mut Page, sample: &Sample) {
    const FAMILIES: [GpuFamily; 3] = [
        ("forebay_gpu_memory_total_bytes", "Memory of the GPU.", |gpu| {
            Some(gpu.total_bytes.to_string())
        }),
        ("forebay_gpu_memory_used_bytes", "Memory that all processes use.", |gpu| {
            Some(gpu.used_bytes.to_string())
        }),
        ("forebay_gpu_busy_ratio", "How much of the time something ran.", |gpu| {
            gpu.busy_percent.map(|busy| format!("{:.2}", f64::from(busy) / 100.0))
        }),
    ];
    for (name, help, figure) in FAMILIES {
        let known = sample.devices.iter().filter_map(|gpu| {
            let index = gpu.index.to_string();
            Some((labels(&[("gpu", &index), ("name", &gpu.name)]), figure(gpu)?))
        });
        page.family(name, Gauge, help, known);
    }
}

/// Every pool with its labels.
fn pools(processes: &[Process]) -> impl Iterator<Item = (String, &ProcessPool)> {
    processes.iter().flat_map(|process| {
        process.snapshot.pools.iter().map(|pool| {
            let device = format!("{}:{}", pool.kind, pool.ordinal);
            let own = [
                ("pool", pool.pool.to_string()),
                ("device", device),
                ("memory", pool.device.clone()),
                ("name", pool.name.clone()),
            ];
            let own = own.each_ref().map(|(name, value)| (*name, value.as_str()));
            // A pool without a name has no such label.
            let own = if pool.name.is_empty() { &own[..3] } else { &own };
            (format!("{},{}", of_process(process), labels(own)), pool)
        })
    })
}

/// The labels of a process.
fn of_process(process: &Process) -> String {
    let of = &process.snapshot;
    let (pid, copy) = (of.pid.to_string(), process.copy.to_string());
    let rank = of.rank.map(|rank| rank.to_string()).unwrap_or_default();
    // What a process does not tell is no label.
    let told = [("process_name", &of.name), ("script", &of.script), ("rank", &rank)];
    let told = told.into_iter().filter(|(_, value)| !value.is_empty());
    let known = [("pid", &*pid), ("process", &*of.process)];
    let told = told.map(|(label, value)| (label, &**value));
    let all: Vec<(&str, &str)> = known.into_iter().chain(told).chain([("copy", &*copy)]).collect();
    labels(of_copy(&all))
}

/// The labels, of which the last is the copy, without that of the first copy: a second one in a process is rare.
fn of_copy<'a, 'b>(all: &'a [(&'b str, &'b str)]) -> &'a [(&'b str, &'b str)] {
    match all {
        [rest @ .., (_, "0")] => rest,
        all => all,
    }
}

/// Labels with their values escaped.
fn labels(all: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (at, (name, value)) in all.iter().enumerate() {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        // A string takes all that is written to it.
        let _ = write!(text, "{}{name}=\"{value}\"", if at > 0 { "," } else { "" });
    }
    text
}

/// Nanoseconds in seconds, without an exponent.
fn seconds(nanoseconds: u64) -> String {
    let text = format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let text = text.trim_end_matches('0');
    text.strip_suffix('.').map_or_else(|| text.to_owned(), |whole| format!("{whole}.0"))
}

struct Page {
    format: Format,
    text: String,
}

impl Page {
    /// A family of counters or gauges, each value with its labels. A counter's name is given without its ending.
    fn family<V: Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        values: impl Iterator<Item = (String, V)>,
    ) {
        let (kind, ending) = match kind {
            Counter => ("counter", "_total"),
            Gauge => ("gauge", ""),
        };
        let of_header = if self.format == Format::Prometheus { ending } else { "" };
        self.header(&format!("{name}{of_header}"), kind, help);
        for (labels, value) in values {
            self.value(&format!("{name}{ending}"), &labels, value);
        }
    }

    fn header(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "{name}{{{labels}}} {value}");
    }
}
