//! NUMA nodes: which processors are near which memory.

use std::path::{Path, PathBuf};

use forebay_core::Bytes;

use super::file::{kilobytes, quoted};
use super::{Reading, System, Unknown};

/// The nodes, a directory each.
const NODES: &str = "/sys/devices/system/node";
/// The processors in use, whether or not there are nodes.
const PROCESSORS: &str = "/sys/devices/system/cpu/online";

/// One node: processors and the memory near them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The system's number for it.
    pub id: u32,
    /// Its processors; empty for a node with only memory.
    pub cpus: Reading<Vec<u32>>,
    /// Its total memory.
    pub total: Reading<Bytes>,
    /// Its free memory, without page cache.
    pub free: Reading<Bytes>,
    /// The distance to each node of [`Topology::nodes`], in that order; 10 is itself.
    pub distances: Reading<Vec<u32>>,
}

/// The NUMA topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The nodes by number. Never empty.
    pub nodes: Vec<NumaNode>,
    /// Why the machine counts as a single node, if it does not show any.
    pub assumed: Option<Unknown>,
}

impl Topology {
    /// Whether memory placement makes no difference.
    pub fn is_uniform(&self) -> bool {
        self.nodes.len() <= 1
    }

    /// The distance from node `from` to node `to`; 10 is itself.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let from = self.nodes.iter().find(|node| node.id == from)?;
        let column = self.nodes.iter().position(|node| node.id == to)?;
        from.distances.as_ref().ok()?.get(column).copied()
    }
}

impl System {
    /// Reads the nodes. A machine that shows none counts as one node with everything.
    pub fn topology(&self) -> Topology {
        match self.list(Path::new(NODES).join("online")) {
            Ok(online) if !online.is_empty() => {
                let count = online.len();
                let nodes = online.iter().map(|&id| self.node(id, count)).collect();
                Topology { nodes, assumed: None }
            }
            Ok(_) => {
                let empty = Unknown::malformed(&Path::new(NODES).join("online"), "is empty");
                Topology { nodes: vec![self.only_node()], assumed: Some(empty) }
            }
            Err(unknown) => Topology { nodes: vec![self.only_node()], assumed: Some(unknown) },
        }
    }

    fn node(&self, id: u32, count: usize) -> NumaNode {
        let directory = Path::new(NODES).join(format!("node{id}"));
        let meminfo = directory.join("meminfo");
        let text = self.text(&meminfo);
        let size = |key| kilobytes(&meminfo, text.as_ref().map_err(Unknown::clone)?, key);
        NumaNode {
            id,
            cpus: self.list(directory.join("cpulist")),
            total: size("MemTotal"),
            free: size("MemFree"),
            distances: self.node_distances(directory.join("distance"), count),
        }
    }

    fn node_distances(&self, file: PathBuf, count: usize) -> Reading<Vec<u32>> {
        let text = self.text(&file)?;
        let distances: Option<Vec<u32>> =
            text.split_whitespace().map(|distance| distance.parse().ok()).collect();
        distances.filter(|distances| distances.len() == count).ok_or_else(|| {
            let found = quoted(&text);
            Unknown::malformed(&file, format!("expected {count} distances, found {found}"))
        })
    }

    /// The whole machine as one node.
    fn only_node(&self) -> NumaNode {
        let memory = self.memory();
        NumaNode {
            id: 0,
            cpus: self.list(PROCESSORS),
            total: memory.total,
            free: memory.available,
            distances: Ok(vec![10]),
        }
    }
}
