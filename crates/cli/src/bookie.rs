//! `bindery bookie`.

use crate::args::BookieArgs;
use crate::config;
use crate::entry_source::ClientEntries;
use crate::exit::{self, Failure};
use crate::logging;
use crate::metadata_failure::is_unreachable;
use crate::repair::RepairRole;
use crate::runtime;
use crate::service_manager::Telling;
use crate::signals::Signals;
use crate::tier_role::TierRole;
use bindery_config::settings;
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::OpenError;
use bindery_metadata::layout::CookiesError;
use bindery_server::admin::extension::Part;
use bindery_server::bookie::{Bookie, Components, Ended, Metadata, StartError};
use bindery_server::latch::Latch;
use std::sync::Arc;

/// Runs a bookie until it is told to stop.
pub fn run(mut args: BookieArgs) -> Result<(), Failure> {
    logging::start(args.log_format);
    let examined = config::examine(&mut args)?;
    let shown = config::show::as_json(&args, &examined);
    let settings = examined.settings().map_err(|faults| Failure::usage_of(&faults))?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    for note in &settings.notes {
        tracing::info!("{note}");
    }
    let runtime = runtime::start()?;
    let result = runtime.block_on(serve(settings, shown));
    // A stop that ran out of time must not wait for the disk after all.
    runtime.shutdown_background();
    result
}

/// A metadata store that cannot be reached has a code of its own, because the same start may succeed later, and so do wrong settings.
fn start_code(error: &StartError) -> u8 {
    let cause = match error {
        StartError::Metadata { source: OpenError::Store(cause) }
        | StartError::Store(cause)
        | StartError::StoredCookie(CookiesError::Store(cause)) => cause,
        // Limits that do not fit together, in flags or in the file.
        StartError::Memory(_) => return exit::USAGE,
        _ => return exit::FAILURE,
    };
    if is_unreachable(cause) { exit::UNREACHABLE } else { exit::FAILURE }
}

async fn serve(settings: settings::Settings, shown: String) -> Result<(), Failure> {
    let stop = Arc::new(Latch::default());
    let watching = tokio::spawn(Signals::new()?.run(stop.clone()));
    let role = settings.tier.filter(|(_, has_role)| *has_role).map(|(tier, _)| {
        TierRole::new(tier, settings.metadata.clone(), settings.config.metadata_security.clone())
    });
    let repair_metadata = (settings.metadata.clone(), settings.config.metadata_security.clone());
    let components = Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Uri(settings.metadata),
    };
    // A stop while starting drops the start: nothing is registered yet, or the session's end removes it.
    let started = tokio::select! {
        () = stop.wait() => return Ok(()),
        started = Bookie::start(settings.config, components) => started,
    };
    let bookie = started.map_err(|error| Failure::with_code(start_code(&error), error))?;
    let _telling = Telling::begin(bookie.health(), &stop);
    if let Some(role) = &role {
        bookie.extend_admin(Part::Tier, role.admin());
    }
    // Reading and telling bookies is over before this one takes its registration back, or a little later: it is not needed.
    let tiering = role.map(|role| role.spawn(&stop));
    let (repair, security) = settings.repair;
    ClientEntries::lend(&bookie, security.clone());
    bookie.show_settings(shown);
    let repairing = repair.is_on.then(|| {
        let config = repair.config(bookie.bookie_id().clone());
        RepairRole::spawn(config, Some(bookie.local_store()), repair_metadata, security, &stop)
    });
    let shown = repairing.as_ref().map(RepairRole::admin).or(repair.left_out.map(RepairRole::left_out));
    if let Some(shown) = shown {
        bookie.extend_admin(Part::Repair, shown);
    }
    let ended = bookie.run(&stop).await;
    watching.abort();
    stop.set();
    if let Some(tiering) = tiering {
        tiering.ended().await;
    }
    if let Some(repairing) = repairing {
        repairing.ended().await;
    }
    match ended {
        Ended::Stopped => Ok(()),
        Ended::RegistrationLost(why) => Err(Failure::with_code(exit::REGISTRATION_LOST, why)),
        Ended::DiskFull(why) => {
            Err(Failure::new(format!("stopped, because readOnlyModeEnabled is false: {why}")))
        }
        Ended::Unclean(why) => Err(Failure::with_code(exit::UNCLEAN_STOP, why)),
    }
}
