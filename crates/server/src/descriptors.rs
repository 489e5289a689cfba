//! File descriptors: one for each connection, one for each entry log, and some for everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as the process may have are taken, up to this: entry logs have no other limit.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// For journal files, entry logs, the metadata connection and the runtime; the admin port takes a few of them at most
/// ([`crate::admin`]).
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
    /// Descriptors that all connections would take.
    pub wanted: u64,
}

/// Raises the limit as far as it goes, or to what `connections_max` connections need; returns how many of them it allows.
pub fn raise(connections_max: usize) -> Result<usize, TooFewDescriptors> {
    let wanted = connections_max as u64 + DESCRIPTORS_RESERVED;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None means no limit.
    let mut limit = current.unwrap_or(u64::MAX);
    for raised in targets(maximum.unwrap_or(u64::MAX), wanted) {
        if raised > limit && setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok() {
            limit = raised;
        }
    }
    allowed(limit, wanted).map(|connections| connections.min(connections_max))
}

/// What to raise the limit to: where a system refuses the first, the second.
fn targets(maximum: u64, wanted: u64) -> [u64; 2] {
    [wanted.max(DESCRIPTORS_MAX).min(maximum), wanted.min(maximum)]
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
    fn the_limit_is_raised_as_far_as_it_goes() {
        assert_eq!(targets(524_288, 11_024), [524_288, 11_024]);
        assert_eq!(targets(u64::MAX, 11_024), [1_048_576, 11_024]);
        assert_eq!(targets(u64::MAX, 2_000_000), [2_000_000; 2]);
        assert_eq!(targets(4096, 11_024), [4096; 2]);
        raise(100).unwrap();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let most = maximum.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX);
        assert!(current.is_none_or(|current| current >= most), "{current:?} of {maximum:?}");
    }

    #[test]
    fn few_descriptors_mean_few_connections_and_too_few_a_refusal() {
        assert_eq!(allowed(1_000_000, 11_024), Ok(10_000));
        assert_eq!(allowed(4096, 11_024), Ok(3072));
        assert_eq!(allowed(256, 11_024), Ok(128));
        let error = allowed(255, 11_024).unwrap_err();
        assert!(error.to_string().contains("ulimit -n 11024"), "{error}");
    }
}
