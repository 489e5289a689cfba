//! `bindery standalone`: a coordinator and bookies in one process, with no other software to install.
//!
//! # Limits     bookies: [`args::BOOKIES_MAX`]; everything listens on loopback
//! # Not here   the life of a bookie (`bindery-server`), the coordinator (`bindery-coordinator`)

pub mod args;
mod cluster;
mod greeting;
mod home;
mod plan;

use crate::args::LogFormat;
use crate::exit::Failure;
use crate::logging;
use crate::output;
use crate::runtime;
use crate::signals::Signals;
use args::StandaloneArgs;
use bindery_io::{Clock, RealDisk, SystemClock, SystemRandom};
use bindery_server::latch::Latch;
use bindery_server::memory::machine_bytes;
use cluster::{Cluster, World};
use greeting::Greeting;
use home::Home;
use std::sync::Arc;
use std::time::Duration;

/// Runs a standalone cluster until it is told to stop.
pub fn run(args: StandaloneArgs) -> Result<(), Failure> {
    // A newcomer reads how to connect, not what the parts say to each other.
    let level = match args.log_format {
        LogFormat::Text => "warn",
        LogFormat::Json => "info",
    };
    logging::start_at(args.log_format, level);
    let plan = plan::plan(&args, machine_bytes()).map_err(|faults| Failure::usage_of(&faults))?;
    let runtime = runtime::start()?;
    let result = runtime.block_on(serve(&args, plan));
    // A stop that ran out of time must not wait for the disk after all.
    runtime.shutdown_background();
    result
}

async fn serve(args: &StandaloneArgs, plan: plan::Plan) -> Result<(), Failure> {
    let stop = Arc::new(Latch::default());
    let watching = tokio::spawn(Signals::new()?.run(stop.clone()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let begun_ns = clock.monotonic_ns();
    let world =
        World { disk: Arc::new(RealDisk::new()), clock: clock.clone(), random: Arc::new(SystemRandom) };
    let (path, bookies_started) = (plan.home.clone(), plan.bookies.len());
    let start = async {
        let disk = world.disk.clone();
        let home = tokio::task::spawn_blocking({
            let path = path.clone();
            move || Home::open(disk, &path)
        });
        let home = Arc::new(home.await.map_err(Failure::new)?.map_err(Failure::new)?);
        Ok((Cluster::start(plan, home.clone(), world).await?, home))
    };
    // A stop while starting drops the start: the next start picks up the files that it wrote.
    let (cluster, home) = tokio::select! {
        () = stop.wait() => return Ok(()),
        started = start => started?,
    };
    let took = Duration::from_nanos(clock.monotonic_ns() - begun_ns);
    let with_data = home.bookies_with_data();
    drop(home);
    let (bookies, admins) = cluster.addresses();
    let greeting = Greeting {
        metadata: cluster.metadata.to_string(),
        oxia: cluster.oxia(),
        environment: std::env::var("BINDERY_METADATA").ok(),
        bookies,
        admins,
        home: path,
        took,
        tls: args.tls_cert.as_ref().map(|_| args.tls_ca.clone()),
        left_out: (with_data > bookies_started).then_some((bookies_started + 1, with_data)),
    };
    if args.log_format == LogFormat::Json {
        tracing::info!(metadata = greeting.metadata, start_ms = took.as_millis() as u64, "serving");
    } else if !args.quiet {
        output::say_part(greeting);
    }
    let ended = cluster.run(stop).await;
    watching.abort();
    if ended.is_ok() && !args.quiet && args.log_format == LogFormat::Text {
        output::say("stopped: everything that was acknowledged is on disk");
    }
    ended
}
