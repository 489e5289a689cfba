//! File descriptors: one for each connection, one for each entry log, and some for everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as the process may have are taken, up to this: entry logs have no other limit.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// For journal files, entry logs, the metadata connection and the runtime; the admin port takes a few of them at most
/// ([`crate::admin`]).
pub const DESCRIPTORS_RESERVED: u64 = 1024;
/// Fewer connections than this are not worth serving.
pub const CONNECTIONS_MIN: u64 = 64;
/// Bounds of [`Allowed::logs_as_one`]. More would let a start open tens of thousands of logs.
const LOGS_AS_ONE_MIN: usize = 8;
const LOGS_AS_ONE_MAX: usize = 256;
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

/// What the limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Connections, at most the number asked for.
    pub connections: usize,
    /// Descriptors left for everything else, most of them for entry logs.
    pub files: u64,
}

impl Allowed {
    /// So many entry logs whose extents are in memory, of each of `directories`, may count as one that merges are behind
    /// ([`bindery_engine::SpaceConfig::logs_in_memory_as_one`]). Under a load that never ends about sixteen times as many are open in each
    /// directory: together a quarter of the descriptors for files, if that is not too few.
    pub fn logs_as_one(&self, directories: usize) -> usize {
        let share = self.files / 64 / directories.max(1) as u64;
        usize::try_from(share).unwrap_or(usize::MAX).clamp(LOGS_AS_ONE_MIN, LOGS_AS_ONE_MAX)
    }
}

/// Raises the limit as far as it goes, or to what `connections_max` connections need.
pub fn raise(connections_max: usize) -> Result<Allowed, TooFewDescriptors> {
    let wanted = connections_max as u64 + DESCRIPTORS_RESERVED;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None means no limit.
    let mut limit = current.unwrap_or(u64::MAX);
    for raised in targets(maximum.unwrap_or(u64::MAX), wanted) {
        if raised > limit && setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok() {
            limit = raised;
        }
    }
    let connections = allowed(limit, wanted)?.min(connections_max);
    Ok(Allowed { connections, files: limit.saturating_sub(connections as u64) })
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
    fn few_descriptors_mean_few_logs() {
        let as_one = |files, directories| Allowed { connections: 0, files }.logs_as_one(directories);
        assert_eq!(
            [(256, 1), (1024, 1), (4096, 2), (1 << 20, 1)].map(|(f, d)| as_one(f, d)),
            [8, 16, 32, 256]
        );
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
