//! `bindery tier run`: a process that is a tierer only.

use super::args::TierRunArgs;
use crate::exit::Failure;
use crate::logging;
use crate::runtime;
use crate::settings::admin_tls;
use crate::signals::Signals;
use crate::tier_role::{self, TierRole};
use bindery_metadata::MetadataUri;
use bindery_server::admin::access::{Access, read_tokens};
use bindery_server::admin::extension::{open_tls, serve_extension};
use bindery_server::latch::Latch;
use bindery_server::sockets::listen;
use bindery_server::tls::TlsConfig;
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
    if let Some(file) = &args.admin_tokens {
        read_tokens(file).map_err(|why| Failure::usage(format!("--admin-tokens: {why}")))?;
    }
    let admin_tls = args.admin_config.as_deref().map(admin_tls::of_file).transpose()?;
    let security = args.metadata.options()?.security;
    let runtime = runtime::start()?;
    let result = runtime.block_on(serve(args, admin_tls, TierRole::new(settings, metadata, security)));
    // A request to the store that hangs must not keep the process.
    runtime.shutdown_background();
    result
}

async fn serve(args: TierRunArgs, admin_tls: Option<TlsConfig>, role: TierRole) -> Result<(), Failure> {
    let stop = Arc::new(Latch::default());
    let watching = tokio::spawn(Signals::new()?.run(stop.clone()));
    let stop_admin = Arc::new(Latch::default());
    let admin = match args.admin {
        None => None,
        Some(address) => {
            let tls = match admin_tls {
                Some(config) => Some(open_tls(config).await.map_err(Failure::usage)?),
                None => None,
            };
            let listener = listen(address).map_err(|error| {
                Failure::new(format!(
                    "cannot listen on {address}: {error}; choose another address with --admin"
                ))
            })?;
            let bound = listener.local_addr().map_err(Failure::new)?;
            tracing::info!(admin = %bound, tls = tls.is_some(), "the admin port is open");
            let access = Access::new(args.admin_tokens);
            Some(tokio::spawn(serve_extension(listener, access, tls, role.admin(), stop_admin.clone())))
        }
    };
    let ended = role.run_or_fail(&stop).await;
    watching.abort();
    stop_admin.set();
    if let Some(admin) = admin {
        admin.abort();
    }
    ended
}
