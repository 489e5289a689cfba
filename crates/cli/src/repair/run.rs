//! `bindery repair`: a process that is auditor and worker only, for clusters of bookies that do not repair by themselves.

use super::admin::{RepairAdmin, Standing};
use super::args::RepairArgs;
use super::{config, own_name};
use crate::exit::Failure;
use crate::ledger::access::connect;
use crate::logging;
use crate::runtime;
use crate::signals::Signals;
use bindery_io::SystemClock;
use bindery_repair::Repair;
use bindery_server::admin::extension::Part;
use bindery_server::latch::Latch;
use std::sync::Arc;
use std::time::Duration;

/// Between two lines about what is done, where there is anything to say.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// Repairs until it is told to stop.
pub fn run(args: RepairArgs) -> Result<(), Failure> {
    logging::start(args.log_format);
    let mut config = config(own_name(args.name.as_deref())?, &args.worker.copies);
    config.auditor.delay = args.lost_after;
    config.auditor.scan_interval = args.scan_interval;
    let unless_zero = |interval: Duration| (!interval.is_zero()).then_some(interval);
    config.checks.interval = unless_zero(args.check_interval);
    config.checks.placement_interval = unless_zero(args.placement_check_interval);
    let tune = args.worker.placement.tune()?;
    let admin = args.admin.read()?;
    let runtime = runtime::start()?;
    let result = runtime.block_on(async {
        let stop = Arc::new(Latch::default());
        let watching = tokio::spawn(Signals::new()?.run(stop.clone()));
        let shown = Arc::new(RepairAdmin::default());
        let _port = admin.open(Part::Repair, shown.clone()).await?;
        let client = tokio::select! {
            () = stop.wait() => return Ok(()),
            client = connect(&args.worker.access, tune) => client?,
        };
        let repair = Repair::start(config, client.clone(), None, Arc::new(SystemClock::new()));
        tracing::info!("repair is running");
        let handle = repair.handle();
        shown.set(Standing::Runs(handle.clone(), client.clone()));
        let mut said = handle.report();
        loop {
            tokio::select! {
                () = stop.wait() => break,
                () = tokio::time::sleep(SAID_EVERY) => {}
            }
            let report = handle.report();
            if (report.repaired, report.stuck_count, report.bytes)
                != (said.repaired, said.stuck_count, said.bytes)
            {
                tracing::info!(
                    repaired = report.repaired,
                    waiting = report.waiting.values().sum::<u64>(),
                    stuck = report.stuck_count,
                    copied_bytes = report.bytes,
                    "repair goes on"
                );
            }
            said = report;
        }
        shown.set(Standing::Ended);
        repair.stop().await;
        client.close().await;
        watching.abort();
        Ok(())
    });
    runtime.shutdown_background();
    result
}
