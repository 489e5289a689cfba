//! What can happen in the simulated world.

use bindery_wire::ErrorCode;

use super::bookie::Mode;

/// Something that can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The application appends an entry.
    Append,
    StartRecovery,
    BeginClose,
    /// The writer leaves the ledger to the next one.
    HandOver,
    /// That one comes.
    TakeOver,
    /// The time is over after which a writer looks whether bookies are back that lack something.
    Tick,
    /// A recoverer does not wait for late answers any longer.
    LosePatience(usize),
    /// A process dies.
    Kill(usize),
    /// The pause is over after which a writer looks for replacements again.
    Retry,
    /// The writer finds that bookies are too slow.
    ReportSlow,
    /// The writer announces its LAC (last add confirmed).
    Announce,
    /// The application forces the ledger.
    Force,
    /// Re-replication begins, or takes its next step.
    Repair,
    /// A bookie does the oldest request of a connection, or refuses it.
    Serve {
        party: usize,
        bookie: usize,
        is_old: bool,
        refusal: Option<ErrorCode>,
    },
    Sync(usize),
    /// A party gets an answer.
    Hear {
        party: usize,
        bookie: usize,
        flight: usize,
        is_damaged: bool,
    },
    /// A party waits no longer; the request goes on.
    TimeOut {
        party: usize,
        bookie: usize,
        flight: usize,
    },
    Break {
        party: usize,
        bookie: usize,
    },
    /// Power is cut: the bookie is down, and knows what was durable when it is up again.
    Crash(usize),
    /// The disks of a bookie are lost as well: it starts again with empty ones, under its name.
    LoseDisks(usize),
    Turn(usize, Mode),
    TurnReadOnly(usize, bool),
    /// The metadata store does what it was asked.
    AskStore {
        party: usize,
        fate: StoreFate,
    },
    /// Its answer arrives. The party may lose patience when it is an error.
    HearStore {
        party: usize,
        gives_up: bool,
    },
}

/// What becomes of a call of the metadata store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreFate {
    Done,
    /// Not done, and the answer is lost.
    LostBefore,
    /// Done, and the answer is lost.
    LostAfter,
    /// A read shows this version, which is not the newest.
    Stale(i64),
}
