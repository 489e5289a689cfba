//! `autorecovery-daemon`: auditor and worker by a bookie's configuration, for charts that run AutoRecovery apart from bookies.

use super::Shell;
use super::options::Given;
use crate::admin_port::AdminPort;
use crate::exit::Failure;
use crate::repair::RepairRole;
use crate::runtime;
use crate::signals::Signals;
use bindery_config::sources::host::{Host, ThisMachine};
use bindery_repair::Targets;
use bindery_server::admin::extension::Part;
use bindery_server::latch::Latch;
use bindery_types::BookieId;
use std::sync::Arc;

/// Repairs until it is told to stop.
pub(super) fn run(shell: Shell, words: &[String]) -> Result<(), Failure> {
    Given::options("autorecovery-daemon", words, &[])?;
    let Shell { config, metadata, repair: (settings, security) } = shell;
    let name = BookieId::new(format!("autorecovery-{}", ThisMachine.name())).map_err(Failure::new)?;
    let mut repair = settings.config(name);
    repair.targets = Targets::Any;
    let admin = AdminPort::of(&config);
    let runtime = runtime::start()?;
    let result = runtime.block_on(async {
        let stop = Arc::new(Latch::default());
        let watching = tokio::spawn(Signals::new()?.run(stop.clone()));
        let role = RepairRole::spawn(repair, None, (metadata, config.metadata_security), security, &stop);
        let _port = admin.open(Part::Repair, role.admin()).await?;
        stop.wait().await;
        role.ended().await;
        watching.abort();
        Ok(())
    });
    runtime.shutdown_background();
    result
}
