//! Steers how fast this process copies: looks at the bookie that it is, and at those that it reads from, each second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Common, pause};
use crate::core::pace::{Pace, PaceSample};

const STEP: Duration = Duration::from_secs(1);

/// Runs until it is told to stop.
pub(super) async fn run(common: Arc<Common>, mut stopped: watch::Receiver<bool>) {
    let mut pace = Pace::new(common.now(), common.config.bytes_per_second);
    while !pause(&mut stopped, STEP).await {
        let (adds, add_us) = common.own.as_ref().map_or((0, 0), |own| (own.adds)());
        let sample = PaceSample { adds, add_us, copied: common.bulk.counts().bytes };
        let before = pace.allowed();
        pace.step(common.now(), sample, !common.client.busy_bookies(STEP).is_empty());
        if pace.allowed() != before {
            common.bulk.set_bytes_per_second(pace.allowed());
        }
        // Since when a bookie is away is to be known also while nothing is marked. A failure is met again by who needs the bookies.
        let _known = common.bookies().await;
        common.places.rest();
        let mut state = common.state.lock();
        (state.bytes_per_second, state.is_slowed_down) = (pace.allowed(), pace.is_slowed_down());
    }
}
