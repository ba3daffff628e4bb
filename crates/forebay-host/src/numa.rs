//! NUMA placement of allocations.
//!
//! A machine with several sockets has memory near each. The system's own policy is set on the addresses before anything
//! touches them, so every page comes from the right node at once and none has to be moved.

use core::ffi::{c_int, c_ulong};

use forebay_core::{Address, Span};
use forebay_hal::{Call, Error, Result, invalid};
use rustix::io::Errno;

use crate::mapping::pointer;
use crate::system::{System, Topology};

/// The NUMA nodes that memory comes from, by the system's numbers, as in `/sys/devices/system/node`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NumaPolicy {
    /// The system's default for the thread that touches a page first.
    #[default]
    Default,
    /// This node, or others if it is full.
    Prefer(u32),
    /// Only these nodes, even if they are full.
    Bind(Vec<u32>),
    /// Pages from each of these in turn.
    Interleave(Vec<u32>),
}

impl NumaPolicy {
    /// The nodes it names.
    pub fn nodes(&self) -> &[u32] {
        match self {
            Self::Default => &[],
            Self::Prefer(node) => core::slice::from_ref(node),
            Self::Bind(nodes) | Self::Interleave(nodes) => nodes,
        }
    }

    const fn mode(&self) -> c_int {
        match self {
            Self::Default => libc::MPOL_DEFAULT,
            Self::Prefer(_) => libc::MPOL_PREFERRED,
            Self::Bind(_) => libc::MPOL_BIND,
            Self::Interleave(_) => libc::MPOL_INTERLEAVE,
        }
    }

    /// Refuses nodes that do not exist, and none at all, before the system answers with a bare
    /// `EINVAL`.
    pub(crate) fn check(&self, topology: &Topology) -> Result<()> {
        let known = || {
            let ids: Vec<_> = topology.nodes.iter().map(|node| node.id.to_string()).collect();
            format!("the nodes of this machine: {}", ids.join(", "))
        };
        if matches!(self, Self::Bind(nodes) | Self::Interleave(nodes) if nodes.is_empty()) {
            return Err(invalid(Call::Open, "numa", "no node", known()));
        }
        match self.nodes().iter().find(|&&id| topology.nodes.iter().all(|node| node.id != id)) {
            Some(missing) => Err(invalid(Call::Open, "numa", format!("node {missing}"), known())),
            None => Ok(()),
        }
    }

    /// Sets the policy on addresses that hold nothing yet.
    ///
    /// # Safety
    ///
    /// * The span is whole pages of mapped memory that the caller made and owns.
    pub(crate) unsafe fn apply(&self, span: Span) -> core::result::Result<(), Errno> {
        if *self == Self::Default {
            return Ok(());
        }
        let mask = mask(self.nodes());
        let length = span.size().to_usize().map_err(|_| Errno::NOMEM)?;
        // SAFETY: mbind reads `mask`, which lives across the call and is as long as told, and
        // changes nothing but where pages of the span come from; the caller owns the span.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                pointer(span.start()),
                length,
                self.mode(),
                mask.as_ptr(),
                bits(&mask),
                0_u32,
            )
        };
        if answer == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// What to say where the system refused the policy.
    pub(crate) fn refused(&self, call: Call, errno: Errno) -> Error {
        let nodes: Vec<_> = System::here().topology().nodes.iter().map(|node| node.id).collect();
        Error::Unsupported {
            call,
            missing: match errno {
                Errno::PERM => format!(
                    "the system does not let this process place memory ({self:?}); in a container, \
                     allow the mbind call (CAP_SYS_NICE, or another seccomp profile)"
                ),
                Errno::NOSYS => format!(
                    "this system was built without NUMA, so memory cannot be placed ({self:?})"
                ),
                _ => format!(
                    "the system refused to place memory ({self:?}): {errno}; nodes {nodes:?} exist, \
                     but the process may be kept to some of them (Mems_allowed_list in \
                     /proc/self/status)"
                ),
            }
            .into(),
        }
    }
}

/// The nodes as the system wants them: one bit each.
fn mask(nodes: &[u32]) -> Vec<c_ulong> {
    let most = nodes.iter().copied().max().unwrap_or(0);
    let mut mask = vec![0; (most / c_ulong::BITS) as usize + 1];
    for &node in nodes {
        if let Some(word) = mask.get_mut((node / c_ulong::BITS) as usize) {
            *word |= 1 << (node % c_ulong::BITS);
        }
    }
    mask
}

/// How many bits to tell the system of: one more than there are, because it reads one fewer than
/// it is told.
fn bits(mask: &[c_ulong]) -> c_ulong {
    let words = c_ulong::try_from(mask.len()).unwrap_or(1);
    words.saturating_mul(c_ulong::from(c_ulong::BITS)).saturating_add(1)
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The node of the processor that this thread runs on, as the system tells.
pub(crate) fn current_node() -> Option<u32> {
    let mut node = 0_u32;
    // SAFETY: the system writes one number to a place of our own, and nothing to null.
    let answer = unsafe { libc::syscall(libc::SYS_getcpu, 0_usize, &raw mut node, 0_usize) };
    (answer == 0).then_some(node)
}

/// The policy in force at an address, as the system tells.
pub(crate) fn policy_at(address: Address) -> core::result::Result<NumaPolicy, Errno> {
    let mut mode: c_int = -1;
    // 1024 nodes are the most any kernel is built for.
    let mut mask = [0 as c_ulong; 1024 / c_ulong::BITS as usize];
    let address_flag: c_ulong = 1 << 1;
    // SAFETY: the system writes one int and as many bits as told, both of which live here.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &mut mode,
            mask.as_mut_ptr(),
            bits(&mask),
            pointer(address),
            address_flag,
        )
    };
    if answer != 0 {
        return Err(last_error());
    }
    let words = (0_u32..).step_by(c_ulong::BITS as usize).zip(mask);
    let nodes = words.flat_map(|(first, word)| {
        (0..c_ulong::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
    });
    let nodes: Vec<u32> = nodes.collect();
    match (mode, nodes.first()) {
        (libc::MPOL_DEFAULT | libc::MPOL_LOCAL, _) => Ok(NumaPolicy::Default),
        (libc::MPOL_PREFERRED, Some(&node)) => Ok(NumaPolicy::Prefer(node)),
        (libc::MPOL_BIND, _) => Ok(NumaPolicy::Bind(nodes)),
        (libc::MPOL_INTERLEAVE, _) => Ok(NumaPolicy::Interleave(nodes)),
        // A policy of the process that forebay has no name for.
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The node whose memory is at an address; `None` where nobody has touched it yet.
pub(crate) fn node_at(address: Address) -> core::result::Result<Option<u32>, Errno> {
    let page = pointer(address);
    let mut status: c_int = -1;
    // SAFETY: without target nodes the call moves nothing. It reads one pointer and writes one int,
    // both of which live here; a page that is not this process's is told by the status.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1 as c_ulong,
            &page,
            core::ptr::null::<c_int>(),
            &mut status,
            0,
        )
    };
    if answer != 0 {
        return Err(last_error());
    }
    match u32::try_from(status) {
        Ok(node) => Ok(Some(node)),
        // Nothing there yet, or the one page of zeros that reads of untouched memory share.
        Err(_) if status == -libc::ENOENT || status == -libc::EFAULT => Ok(None),
        Err(_) => Err(Errno::from_raw_os_error(-status)),
    }
}
