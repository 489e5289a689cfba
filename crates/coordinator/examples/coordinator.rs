//! Runs an embedded coordinator alone: `coordinator DATA_DIR ADDRESS [CHECK_MS [OXIA_ADDRESS]]`, for example
//! `coordinator /tmp/c 127.0.0.1:2181`. `CHECK_MS` is the interval at which containers and times to live are looked
//! after. At `OXIA_ADDRESS` it speaks Oxia's protocol.
//!
//! Prints `listening ADDRESS` when it serves and runs until a signal ends it or its store fails (exit code 1).

use bindery_coordinator::{Coordinator, CoordinatorConfig};
use bindery_io::{SystemClock, SystemRandom};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(dir), Some(address)) = (args.next(), args.next()) else {
        return Err("usage: coordinator DATA_DIR ADDRESS [CHECK_MS [OXIA_ADDRESS]]".into());
    };
    let mut config = CoordinatorConfig::new(address.parse()?, dir);
    if let Some(check_ms) = args.next() {
        config.container_check_interval = Duration::from_millis(check_ms.parse()?);
    }
    if let Some(oxia) = args.next() {
        config.oxia = Some(oxia.parse()?);
    }
    let coordinator =
        Coordinator::start(config, Arc::new(SystemClock::new()), Arc::new(SystemRandom)).await?;
    println!("listening {}", coordinator.local_addr());
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        reason = coordinator.failed() => return Err(reason.into()),
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    coordinator.stop().await;
    Ok(())
}
