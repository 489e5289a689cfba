//! `bindery bench read --log`: every call, and what the client thinks of its bookies meanwhile, for those who want to see
//! how a fault is noticed, second by second.
//!
//! ```text
//! call   <seconds since 1970 when it was due> <milliseconds it took> ok|<error>
//! bookie <seconds> <id> <state> <reads sent to it so far>
//! reads  <seconds> <hedges sent so far> <retries so far>
//! ```
//!
//! # Invariants
//! 1. Lines are in the order of what they tell: calls as they end, bookies and reads every [`LOOK_INTERVAL`].
//! 2. Nothing is written before the load is over.
//!
//! # Limits     some 40 bytes for each call, in memory

use crate::exit::Failure;
use crate::output::Output;
use bindery_client::Client;
use bindery_io::{Clock, SystemClock};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

/// The interval at which the client is sampled.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// When the log began, by both clocks.
struct Origin {
    instant: Instant,
    since_epoch: Duration,
}

impl Origin {
    fn seconds(&self, at: Instant) -> f64 {
        // No call is due before the log began: the load begins later.
        (self.since_epoch + at.saturating_duration_since(self.instant)).as_secs_f64()
    }
}

struct Shared {
    origin: Origin,
    lines: Mutex<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, String> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn look(&self, client: &Client) {
        let at = self.origin.seconds(Instant::now());
        let (bookies, reads) = (client.bookie_health(), client.read_health());
        let mut lines = self.lock();
        for bookie in bookies {
            let state = bookie.state.as_str();
            let _ = writeln!(lines, "bookie {at:.3} {} {state} {}", bookie.bookie, bookie.reads_sent);
        }
        let _ = writeln!(lines, "reads {at:.3} {} {}", reads.hedges_sent, reads.retries);
    }
}

/// See the module. Dropped, it looks no more.
pub struct CallLog {
    shared: Arc<Shared>,
    looker: JoinHandle<()>,
}

impl Drop for CallLog {
    fn drop(&mut self) {
        self.looker.abort();
    }
}

impl CallLog {
    /// Starts sampling the client.
    pub fn start(client: &Client) -> CallLog {
        let wall_ms = u64::try_from(SystemClock::new().wall_ms()).unwrap_or(0);
        let origin = Origin { instant: Instant::now(), since_epoch: Duration::from_millis(wall_ms) };
        let shared = Arc::new(Shared { origin, lines: Mutex::default() });
        let (client, looked_at) = (client.clone(), shared.clone());
        let looker = tokio::spawn(async move {
            let mut ticks = interval(LOOK_INTERVAL);
            loop {
                ticks.tick().await;
                looked_at.look(&client);
            }
        });
        CallLog { shared, looker }
    }

    /// A call that was due at `due` took so long, and failed for that reason.
    pub fn call(&self, due: Instant, latency: Duration, error: Option<&str>) {
        let (at, ms) = (self.shared.origin.seconds(due), latency.as_secs_f64() * 1000.0);
        let _ = writeln!(self.shared.lock(), "call {at:.6} {ms:.3} {}", error.unwrap_or("ok"));
    }

    /// Writes it to standard output.
    pub async fn print(&self) -> Result<(), Failure> {
        self.looker.abort();
        let lines = std::mem::take(&mut *self.shared.lock());
        let mut output = Output::start()?;
        // Why it ended is what `finish` says.
        let _ = output.write(lines.as_bytes()).await;
        output.finish().await
    }
}
