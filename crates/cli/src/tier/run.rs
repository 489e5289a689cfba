//! `bindery tier run`: a process that is a tierer only.

use super::args::TierRunArgs;
use crate::admin_port::AdminPort;
use crate::exit::Failure;
use crate::logging;
use crate::runtime;
use crate::signals::Signals;
use crate::tier_role::{self, TierRole};
use bindery_metadata::MetadataUri;
use bindery_server::admin::extension::Part;
use bindery_server::latch::Latch;
use std::sync::Arc;

/// Runs a tierer until it is told to stop.
pub fn run(args: TierRunArgs) -> Result<(), Failure> {
    logging::start(args.log_format);
    let Some(url) = args.store.as_deref().filter(|url| !url.is_empty()) else {
        return Err(Failure::usage(
            "no object store: give --store file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix, \
             or set BINDERY_TIER",
        ));
    };
    let metadata: MetadataUri =
        args.metadata.metadata.parse().map_err(|error: bindery_metadata::UriError| Failure::usage(error))?;
    let mut settings =
        tier_role::settings("--store", url, &args.tuning).map_err(|faults| Failure::usage_of(&faults))?;
    settings.security = args.security.security()?;
    let admin = args.admin.read()?;
    let security = args.metadata.options()?.security;
    let runtime = runtime::start()?;
    let result = runtime.block_on(serve(admin, TierRole::new(settings, metadata, security)));
    // A request to the store that hangs must not keep the process.
    runtime.shutdown_background();
    result
}

async fn serve(admin: AdminPort, role: TierRole) -> Result<(), Failure> {
    let stop = Arc::new(Latch::default());
    let watching = tokio::spawn(Signals::new()?.run(stop.clone()));
    let _port = admin.open(Part::Tier, role.admin()).await?;
    let ended = role.run_or_fail(&stop).await;
    watching.abort();
    ended
}
