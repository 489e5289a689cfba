//! File descriptors: one for each connection, and some for everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For journal files, entry logs, the metadata connection, the admin port and the runtime.
pub const DESCRIPTORS_RESERVED: u64 = 1024;
/// Fewer connections than this are not worth serving.
pub const CONNECTIONS_MIN: u64 = 64;
/// With fewer a bookie does not start.
const DESCRIPTORS_MIN: u64 = 256;

/// The process may open too few files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "too few file descriptors: the limit is {limit}, a bookie needs at least {DESCRIPTORS_MIN} and wants {wanted}: raise it with \
     ulimit -n {wanted}, or LimitNOFILE={wanted} in the systemd unit"
)]
pub struct TooFewDescriptors {
    /// The hard limit of this process.
    pub limit: u64,
    /// What all connections would take.
    pub wanted: u64,
}

/// Raises the limit to what `connections_max` connections need; returns how many of them it allows.
pub fn raise(connections_max: usize) -> Result<usize, TooFewDescriptors> {
    let wanted = connections_max as u64 + DESCRIPTORS_RESERVED;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None means no limit.
    let mut limit = current.unwrap_or(u64::MAX);
    if limit < wanted {
        let raised = maximum.unwrap_or(u64::MAX).min(wanted);
        if raised > limit && setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok() {
            limit = raised;
        }
    }
    allowed(limit, wanted).map(|connections| connections.min(connections_max))
}

fn allowed(limit: u64, wanted: u64) -> Result<usize, TooFewDescriptors> {
    if limit < DESCRIPTORS_MIN {
        return Err(TooFewDescriptors { limit, wanted });
    }
    // Short of descriptors, at least half of them stay for files.
    let reserved = DESCRIPTORS_RESERVED.min(limit / 2);
    let connections = limit.min(wanted) - reserved;
    Ok(connections.max(CONNECTIONS_MIN) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_few_connections_and_too_few_a_refusal() {
        assert_eq!(allowed(1_000_000, 11_024), Ok(10_000));
        assert_eq!(allowed(4096, 11_024), Ok(3072));
        assert_eq!(allowed(256, 11_024), Ok(128));
        let error = allowed(255, 11_024).unwrap_err();
        assert!(error.to_string().contains("ulimit -n 11024"), "{error}");
    }
}
